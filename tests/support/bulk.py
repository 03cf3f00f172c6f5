"""Dead letters by the thousand, and bulk operations on all that match."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from gateway.config.registry import Registry, Subscription
from gateway.ledger.bulk import (
    Action,
    BulkOperation,
    EffectPolicy,
    NewBulkOperation,
    StepContext,
    begin_bulk,
)
from gateway.ledger.connection import Connection, connect
from gateway.ledger.encryption import OPEN
from gateway.ledger.filter import Filter
from gateway.operations.bulk import BulkRunner, count_matching
from tests.support.ledger import Reader

EVENTS = """
with added as (
    insert into gateway.processed_events
        (route, event_id, provider, type, account, received_at, digest, payload_id, payload_until)
    select $1, $2 || n, 'stripe', $3, 'acct_' || n % 3,
           now() - interval '2 h' + n * interval '1 ms',
           sha256(convert_to($1 || $2 || n, 'utf8')), nextval('gateway.payload_ids'),
           gateway.forget_on(now(), '14 days')
    from generate_series(1, $4::int) as n
    returning *
)
insert into gateway.payloads (id, until, route, event_id, headers, body)
select payload_id, payload_until, route, event_id, '{}',
       convert_to('{"id": "' || event_id || '", "key": "key_'
                  || substr(event_id, length($2) + 1)::int % 5 || '"}', 'utf8')
from added
"""
DEAD = """
insert into gateway.deliveries
    (route, event_id, handler, status, attempts, runs, finished_at, error, order_key)
select $1, $2 || n, $3, 'dead', 3, 3, now() - interval '1 h' + n * interval '1 ms', $4,
       case when $5 then 'key_' || n % 5 end
from generate_series(1, $6::int) as n
order by n
"""


async def add_events(
    ledger: Reader, n: int, *, route: str = "stripe", prefix: str = "evt_", type: str = "a.b"
) -> None:
    """Events that came two hours ago, in the order of their numbers."""
    await ledger.run(EVENTS, route, prefix, type, n)


async def add_dead(
    ledger: Reader,
    n: int,
    handler: str = "handlers.count",
    *,
    error: str | None = "ValueError: boom",
    ordered: bool = False,
    prefix: str = "evt_",
) -> None:
    """Deliveries of such events that died an hour ago, in the order of their numbers."""
    await ledger.run(DEAD, "stripe", prefix, handler, error, ordered, n)


async def blocked(ledger: Reader) -> bool:
    """Whether someone waits for another's transaction."""
    return bool(
        await ledger.value(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0"
        )
    )


class Clerk:
    """Runs bulk operations as an operator would, on a connection of its own."""

    def __init__(self, connection: Connection, subscriptions: Sequence[Subscription]) -> None:
        self.connection = connection
        self.woken: list[int] = []
        self.encryption = OPEN
        self._registry = Registry(subscriptions)

    async def begin(self, action: Action = Action.REPLAY, **filters: Any) -> BulkOperation:
        rate, as_of = filters.pop("rate", None), filters.pop("as_of", datetime.now(UTC))
        effects = filters.pop("effects", EffectPolicy.KEEP)
        filter = Filter(**filters)
        count = await count_matching(self.connection, action, filter, as_of, lambda: self._registry)
        new = NewBulkOperation(
            action=action,
            filter=filter,
            actor="ann",
            reason="a test",
            rate=rate,
            as_of=as_of,
            total=count.total,
            effects=effects,
        )
        return await begin_bulk(self.connection, new)

    def steps(self, bulk: BulkOperation) -> Any:
        """How it stands after each step."""
        means = StepContext(registry=lambda: self._registry, encryption=lambda: self.encryption)
        runner = BulkRunner(session=self._session, wake=self._wake, means=means)
        return runner.run(bulk)

    async def run(self, bulk: BulkOperation) -> BulkOperation:
        """To its end."""
        async for stepped in self.steps(bulk):
            bulk = stepped
        return bulk

    async def do(self, action: Action = Action.REPLAY, **filters: Any) -> BulkOperation:
        return await self.run(await self.begin(action, **filters))

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Connection]:
        yield self.connection

    async def _wake(self, delivery_ids: Sequence[int]) -> None:
        self.woken += delivery_ids


@asynccontextmanager
async def clerk(url: str, *subscriptions: Subscription) -> AsyncIterator[Clerk]:
    """Someone at the ledger."""
    connection = await connect(url, name="test")
    try:
        yield Clerk(connection, subscriptions)
    finally:
        await connection.close()
