"""The transitions of a delivery: leased, renewed, settled, reaped, replayed, discarded."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

import asyncpg
import orjson

from gateway.base.errors import LeaseLost, NotFound, TransactionEnded, TransitionRefused
from gateway.base.model import Event, Lease, Outcome, Status
from gateway.ledger.connection import QUERIES, Executor
from gateway.ledger.ordering import OrderingKey, advance
from gateway.ledger.sessions import Session
from gateway.privacy.encryption import sealed_under

MAX_LOSSES: Final = 10
"""After this many lost runs in a row a delivery is dead, because its handler may be what ends its
workers."""

BEGINS_WITHIN: Final = timedelta(seconds=1)
"""Within this time a worker begins a leased delivery or hands it back. After it, the worker first
checks whether the handler has been paused."""

KEPT_IN_VAIN: Final = 100
"""The number of the latest runs of a delivery of which even those that burned no attempt are kept.
Nothing else bounds how often a service may ask to be called again."""

ERROR_CHARS: Final = 8_000
LEASE_LOST: Final = "GW001"
"""The SQLSTATE that the function gateway.settle raises."""
NOT_ITS_TRANSACTION: Final = "GW002"
"""The SQLSTATE that the function gateway.settle_done raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The outcome of a run, and the next state of its delivery."""

    status: Status
    outcome: Outcome
    error: str | None = None
    """One line, stored with the delivery."""
    detail: str | None = None
    """The error with its traceback, stored with the attempt."""
    delay: timedelta = timedelta()
    is_conflict: bool = False
    """Whether a lost run has lost against others. Such runs never make a delivery dead."""
    sealed: bytes | None = None
    """On an encrypted route: the text that `error` and `detail` leave out, encrypted."""

    @property
    def burned(self) -> bool:
        return self.outcome in {Outcome.DONE, Outcome.RETRY, Outcome.DEAD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The concurrency limit and the rate limit of a handler: a start takes a slot for `period`."""

    concurrency: int | None
    period: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRoom:
    """The number of bytes of bodies that a lease statement may return."""

    large: int
    """Large bodies are leased, oldest first, while the ones before them add up to fewer bytes than
    this. At 0 they are skipped, and small ones behind them are leased."""
    small: int
    """Bodies up to this size are always leased."""


UNBOUNDED: Final = ByteRoom(large=2**62, small=0)
ENDED_EARLY: Final = (
    "the handler ended its own transaction (COMMIT, ROLLBACK or RESET ALL in its SQL). What it "
    "wrote before may be committed, and is not applied again. Leave the end of the transaction to "
    "the gateway; look at what was written, then replay or discard the delivery"
)

IN_VAIN: Final = frozenset({Outcome.DEFERRED, Outcome.RELEASED})
DONE: Final = Settlement(status=Status.DONE, outcome=Outcome.DONE)


async def lease_hinted(
    ledger: Executor,
    delivery_ids: Sequence[int],
    handlers: Sequence[tuple[str, str]],
    lease: timedelta,
    room: ByteRoom = UNBOUNDED,
) -> list[Lease]:
    """Lease the deliveries of a wake-up that are still due and fit into the byte limit."""
    routes, names = _columns(handlers)
    arguments = (delivery_ids, routes, names, lease, room.large, room.small)
    rows = await ledger.fetch(QUERIES["lease_hinted"], *arguments)
    return [_lease(row) for row in rows]


async def lease_due(
    ledger: Executor,
    limit: int,
    handlers: Sequence[tuple[str, str]],
    lease: timedelta,
    room: ByteRoom = UNBOUNDED,
    *,
    suspects: bool = False,
) -> list[Lease]:
    """Lease due deliveries, oldest first, as far as their bodies fit into the byte limit.

    Suspects, whose worker was lost twice, are leased separately from all others.
    """
    routes, names = _columns(handlers)
    arguments = (routes, names, limit, lease, room.large, room.small, suspects)
    rows = await ledger.fetch(QUERIES["lease_due"], *arguments)
    return [_lease(row) for row in rows]


async def find_due(
    ledger: Executor, delivery_ids: Sequence[int], handlers: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return which of these handlers have a due delivery among these deliveries."""
    routes, names = _columns(handlers)
    rows = await ledger.fetch(QUERIES["find_due"], delivery_ids, routes, names)
    return [(row["route"], row["handler"]) for row in rows]


async def find_suspects(ledger: Executor, handlers: Sequence[tuple[str, str]]) -> bool:
    """Return whether a suspect of these handlers is due."""
    is_due: bool = await ledger.fetchval(QUERIES["find_suspects"], *_columns(handlers))
    return is_due


async def lease_limited(
    ledger: Executor,
    most: int,
    handler: tuple[str, str],
    limit: Limit,
    lease: timedelta,
    room: ByteRoom = UNBOUNDED,
    *,
    suspects: bool = False,
) -> list[Lease]:
    """Lease due deliveries of a handler, as far as its limits and the byte limit allow."""
    terms = (limit.concurrency, limit.period, most, lease, room.large, room.small, suspects)
    leased = await ledger.fetch(QUERIES["lease_limited"], *handler, *terms)
    if not leased:
        return []
    ids, tokens = [row["id"] for row in leased], [row["lease_token"] for row in leased]
    return [_lease(row) for row in await ledger.fetch(QUERIES["read_leased"], ids, tokens)]


async def next_place(ledger: Executor, handler: tuple[str, str]) -> timedelta:
    """Return how long it takes until a handler with a rate limit may start another delivery."""
    wait: timedelta | None = await ledger.fetchval(QUERIES["next_place"], *handler)
    return wait or timedelta()


async def keep_places(ledger: Executor, handler: tuple[str, str], count: int) -> None:
    """Create as many slots as the handler's rate limit allows starts in its period."""
    await ledger.execute(QUERIES["keep_places"], *handler, count)


async def renew(
    ledger: Executor, leases: Sequence[Lease], lease: timedelta, worker_id: UUID
) -> set[UUID]:
    """Send the worker's heartbeat, which renews these leases.

    Returns the tokens of the leases that were not lost before.
    """
    ids, tokens = [held.delivery_id for held in leases], [held.token for held in leases]
    rows = await ledger.fetch(QUERIES["renew"], ids, tokens, worker_id, lease)
    return {row["token"] for row in rows}


async def settle(ledger: Executor, lease: Lease, settlement: Settlement) -> Status:
    """Settle a run under its fencing token.

    Raises LeaseLost, having changed nothing, if the token is no longer valid.
    """
    if settlement.outcome in IN_VAIN:
        await ledger.execute(QUERIES["forget_in_vain"], lease.delivery_id, KEPT_IN_VAIN)
    arguments = (
        lease.delivery_id,
        lease.token,
        settlement.status,
        settlement.outcome,
        int(settlement.burned),
        settlement.delay,
        _storable(settlement.error),
        _storable(settlement.detail),
        None if settlement.is_conflict else MAX_LOSSES,
    )
    sealed = settlement.sealed
    key_id = None if sealed is None else sealed_under(sealed)
    with _fenced(lease):
        return Status(await ledger.fetchval(QUERIES["settle"], *arguments, sealed, key_id))


async def settle_done(session: Session, lease: Lease, *, chain: bool) -> None:
    """Settle the transaction's delivery as done and commit, in one round trip.

    The next delivery of its ordering key is not advanced: the caller does that after the commit.
    Raises LeaseLost, having committed nothing, if the token is no longer valid. Raises
    TransactionEnded if the transaction is not the one that was begun for this run.
    """
    call = f"gateway.settle_done({lease.delivery_id:d}, '{lease.token}', '{session.proof}')"
    try:
        with _fenced(lease):
            await session.commit(f"select {call}", chain=chain)
    except asyncpg.PostgresError as error:
        if error.sqlstate != NOT_ITS_TRANSACTION:
            raise
        raise TransactionEnded(ENDED_EARLY) from error


@contextmanager
def _fenced(lease: Lease) -> Iterator[None]:
    try:
        yield
    except asyncpg.PostgresError as error:
        if error.sqlstate != LEASE_LOST:
            raise
        raise LeaseLost(f"delivery {lease.delivery_id} belongs to another run now") from error


async def reap(ledger: Executor, limit: int, lease: timedelta) -> list[asyncpg.Record]:
    """Take back expired leases."""
    rows: list[asyncpg.Record] = await ledger.fetch(QUERIES["reap"], limit, MAX_LOSSES, lease)
    await advance(ledger, turns_of(row for row in rows if row["status"] == Status.DEAD))
    return rows


def turns_of(rows: Iterable[asyncpg.Record]) -> list[OrderingKey]:
    """Return the ordering keys of deliveries that no longer run, or that wait again."""
    return [
        OrderingKey(row["route"], row["handler"], row["order_key"])
        for row in rows
        if row["order_key"] is not None
    ]


class KnownEffects(NamedTuple):
    """The external effects of deliveries that are run again."""

    kept: int = 0
    """The number of effects that are done, and are not run again."""
    unknown: int = 0
    """The number of effects with an unknown outcome."""


NO_EFFECTS: Final = KnownEffects()


class Replayed(NamedTuple):
    """The result of a replay."""

    due: list[int]
    """The deliveries that may run now: this one, or another one with its ordering key."""
    effects: KnownEffects


async def replay(
    ledger: Executor,
    delivery_id: int,
    *,
    actor: str,
    reason: str | None,
    retry_effects: bool = False,
) -> Replayed:
    """Start a new round of attempts.

    With `retry_effects`, effects with an unknown outcome are run again. Raises TransitionRefused if
    the state forbids the replay.
    """
    moved = await ledger.fetchrow(QUERIES["replay"], delivery_id, actor, reason, retry_effects)
    if moved is not None:
        effects = KnownEffects(moved["effects_kept"], moved["effects_unknown"])
        return Replayed([delivery_id, *await advance(ledger, turns_of([moved]))], effects)
    row = await ledger.fetchrow(QUERIES["find_delivery"], delivery_id)
    if row is None:
        raise NotFound(f"there is no delivery {delivery_id}")
    if not row["payload_kept"]:
        raise TransitionRefused(
            f"delivery {delivery_id} cannot run again: its payload was pruned or erased"
        )
    raise TransitionRefused(
        f"delivery {delivery_id} is {row['status']} right now: wait until its run has ended"
    )


async def count_effects(ledger: Executor, delivery_id: int) -> KnownEffects:
    """Count the effects of a delivery that matter for a replay."""
    [row] = await ledger.fetch(QUERIES["count_effects_of"], delivery_id)
    return KnownEffects(row["kept"], row["unknown"])


async def discard(
    ledger: Executor, delivery_id: int, *, actor: str, reason: str | None
) -> list[int]:
    """Discard a pending or dead delivery. Return the deliveries that it blocked and that may run
    now.

    Raises TransitionRefused if the state forbids it.
    """
    moved = await ledger.fetchrow(QUERIES["discard"], delivery_id, actor, reason)
    if moved is not None:
        return await advance(ledger, turns_of([moved]))
    row = await ledger.fetchrow(QUERIES["find_delivery"], delivery_id)
    if row is None:
        raise NotFound(f"there is no delivery {delivery_id}")
    raise TransitionRefused(
        f"delivery {delivery_id} is {row['status']}: only what is pending or dead can be discarded"
    )


def _columns(handlers: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [route for route, _ in handlers], [name for _, name in handlers]


def _lease(row: asyncpg.Record) -> Lease:
    return Lease(
        delivery_id=row["id"],
        token=row["lease_token"],
        handler=row["handler"],
        attempt=row["attempts"] + 1,
        event=event_of(row),
        run=row["runs"],
        sealed=None if row["key_id"] is None else row["body"],
        body_bytes=len(row["body"] or b""),
        trace=row["trace"],
        payload_kept=row["body"] is not None,
        order_key=row["order_key"],
        conflicts=row["conflicts"],
    )


def event_of(row: asyncpg.Record) -> Event:
    """Return the event of a row that has all columns.

    If the event is encrypted, the body is empty.
    """
    body = row["body"] if row["key_id"] is None else None
    return Event(
        id=row["event_id"],
        type=row["type"],
        route=row["route"],
        provider=row["provider"],
        account=row["account"],
        livemode=row["livemode"],
        occurred_at=row["occurred_at"],
        received_at=row["received_at"],
        headers=orjson.loads(row["headers"] or "{}"),
        body=body or b"",
    )


def _storable(error: str | None) -> str | None:
    """Return text that Postgres can store: no NUL, no lone surrogate, bounded length."""
    if error is None:
        return None
    return error[:ERROR_CHARS].replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
