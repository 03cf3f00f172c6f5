"""Claims and reads as tests need them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg
import orjson

from gateway.base.model import Envelope, RepeatPolicy
from gateway.ledger.claims import Claim, Claimed, Claimer
from gateway.ledger.deliveries import discard, replay


def make_claim(
    event_id: str | None = None,
    *,
    route: str = "stripe",
    type: str = "invoice.paid",
    handlers: Sequence[str] = ("handlers.count",),
    body: bytes | None = None,
    repeats: RepeatPolicy | None = None,
    received_at: datetime | None = None,
    occurred_at: datetime | None = None,
    order_keys: Mapping[str, str] | None = None,
) -> Claim:
    """A claim as the endpoint would make it."""
    event_id = event_id or f"evt_{uuid4().hex}"
    body = body if body is not None else orjson.dumps({"id": event_id, "type": type})
    return Claim(
        route=route,
        provider="stripe",
        envelope=Envelope(id=event_id, type=type, occurred_at=occurred_at),
        received_at=received_at or datetime.now(UTC),
        digest=hashlib.sha256(body).digest(),
        headers={},
        body=body,
        repeats=repeats,
        refuses=None if repeats is None else lambda _: repeats == RepeatPolicy.REFUSE,
        handlers=tuple(handlers),
        order_keys=order_keys or {},
    )


@asynccontextmanager
async def claiming(url: str, accepted: list[int] | None = None) -> AsyncIterator[Claimer]:
    """A running claimer."""
    sink = accepted if accepted is not None else []
    claimer = Claimer(url, on_accepted=sink.extend)
    await claimer.start()
    try:
        yield claimer
    finally:
        await claimer.stop()


async def claim_all(url: str, claims: Sequence[Claim]) -> list[Claimed]:
    """Claims them at once and returns the answers in order."""
    async with claiming(url) as claimer:
        return await asyncio.gather(*map(claimer.claim, claims))


class Reader:
    """A connection for looking, and for arranging what cannot be waited for.

    Tests and the handlers that they run may ask at once: they take turns.
    """

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection
        self._turn = asyncio.Lock()

    async def value(self, query: str, *args: Any) -> Any:
        async with self._turn:
            return await self._connection.fetchval(query, *args)

    async def rows(self, query: str, *args: Any) -> list[dict[str, Any]]:
        async with self._turn:
            return [dict(row) for row in await self._connection.fetch(query, *args)]

    async def row(self, query: str, *args: Any) -> dict[str, Any]:
        found = await self.rows(query, *args)
        assert len(found) == 1, found
        return found[0]

    async def run(self, query: str, *args: Any) -> None:
        async with self._turn:
            await self._connection.execute(query, *args)

    async def replay(self, delivery_id: int) -> None:
        """As an operator would."""
        async with self._turn:
            await replay(self._connection, delivery_id, actor="test", reason=None)

    async def discard(self, delivery_id: int) -> None:
        """As an operator would."""
        async with self._turn:
            await discard(self._connection, delivery_id, actor="test", reason=None)

    async def is_blocked(self, sessions: int = 1) -> bool:
        """Whether this many sessions of this database wait for a lock."""
        waiting: int = await self.value(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock'"
        )
        return waiting >= sessions

    async def statuses(self) -> dict[str, int]:
        """How many deliveries are in which state."""
        found = await self.rows(
            "select status, count(*) as n from gateway.deliveries group by status"
        )
        return {row["status"]: row["n"] for row in found}

    async def delivery(self, delivery_id: int | None = None) -> dict[str, Any]:
        """The only delivery, or this one."""
        return await self.row(
            "select * from gateway.deliveries where $1::bigint is null or id = $1", delivery_id
        )

    async def outcomes(self) -> list[str]:
        """The outcomes of all attempts, in order."""
        found = await self.rows("select outcome from gateway.attempts order by delivery_id, number")
        return [row["outcome"] for row in found]

    async def effects(self) -> int:
        count: int = await self.value("select count(*) from public.effects")
        return count
