"""The life of a delivery: leased, renewed, settled, taken back, replayed, discarded."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

import asyncpg
import orjson

from gateway.errors import LeaseLost, NotFound, TransactionEnded, TransitionRefused
from gateway.ledger.connection import Executor
from gateway.ledger.queries import QUERIES
from gateway.ledger.sessions import Session
from gateway.ledger.turns import Turn, advance
from gateway.model import Event, Lease, Outcome, Status
from gateway.sealing import sealed_under

MAX_LOSSES: Final = 10
"""Runs lost in a row before a delivery is dead: its handler may be what ends its workers."""

BEGINS_WITHIN: Final = timedelta(seconds=1)
"""A worker begins what it has leased within this time, or hands it back, or asks first whether it
is paused by now."""

KEPT_IN_VAIN: Final = 100
"""Runs of a delivery, from its last one back, of which also those are on record that burned no
attempt: nothing else bounds how often a service may ask to come again."""

ERROR_CHARS: Final = 8_000
LEASE_LOST: Final = "GW001"
"""The SQLSTATE that the function gateway.settle raises."""
NOT_ITS_TRANSACTION: Final = "GW002"
"""The SQLSTATE that the function gateway.settle_done raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How a run ended, and what becomes of its delivery."""

    status: Status
    outcome: Outcome
    error: str | None = None
    """One line, kept with the delivery."""
    detail: str | None = None
    """The error with its traceback, kept with the attempt."""
    delay: timedelta = timedelta()
    sealed: bytes | None = None
    """On an encrypted route: all that `error` and `detail` leave out, sealed."""

    @property
    def burned(self) -> bool:
        return self.outcome in {Outcome.DONE, Outcome.RETRY, Outcome.DEAD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How many deliveries may run at once, and for how long a start takes a place."""

    concurrency: int | None
    period: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRoom:
    """How many bytes of bodies a lease statement may return."""

    large: int
    """Large bodies are leased, oldest first, while those before them are fewer bytes than this.
    At 0 they are passed over, and small ones behind them are leased."""
    small: int
    """Bodies up to this size are leased in any case."""


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
    """Lease deliveries that a wake-up named, as far as they are still due and fit into the room."""
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
    """Lease due deliveries, oldest first, as far as their bodies fit into the room.

    Suspects, whose worker was lost twice, are leased apart from all others.
    """
    routes, names = _columns(handlers)
    arguments = (routes, names, limit, lease, room.large, room.small, suspects)
    rows = await ledger.fetch(QUERIES["lease_due"], *arguments)
    return [_lease(row) for row in rows]


async def find_due(
    ledger: Executor, delivery_ids: Sequence[int], handlers: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Which of these handlers have something due among these deliveries."""
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
    """Lease due deliveries of a handler, as far as its limit and the room for bodies allow."""
    terms = (limit.concurrency, limit.period, most, lease, room.large, room.small, suspects)
    leased = await ledger.fetch(QUERIES["lease_limited"], *handler, *terms)
    if not leased:
        return []
    ids, tokens = [row["id"] for row in leased], [row["lease_token"] for row in leased]
    return [_lease(row) for row in await ledger.fetch(QUERIES["read_leased"], ids, tokens)]


async def next_place(ledger: Executor, handler: tuple[str, str]) -> timedelta:
    """How long until a handler with a rate may start another delivery."""
    wait: timedelta | None = await ledger.fetchval(QUERIES["next_place"], *handler)
    return wait or timedelta()


async def keep_places(ledger: Executor, handler: tuple[str, str], count: int) -> None:
    """Makes as many places as may start in the period of the handler's rate."""
    await ledger.execute(QUERIES["keep_places"], *handler, count)


async def renew(
    ledger: Executor, leases: Sequence[Lease], lease: timedelta, worker_id: UUID
) -> set[UUID]:
    """Send the worker's heartbeat, which keeps these leases alive; return the tokens of those that
    were not lost before."""
    ids, tokens = [held.delivery_id for held in leases], [held.token for held in leases]
    rows = await ledger.fetch(QUERIES["renew"], ids, tokens, worker_id, lease)
    return {row["token"] for row in rows}


async def settle(ledger: Executor, lease: Lease, settlement: Settlement) -> Status:
    """Ends a run under its fence. Raises LeaseLost, having changed nothing, if the token is old."""
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
        MAX_LOSSES,
    )
    sealed = settlement.sealed
    key_id = None if sealed is None else sealed_under(sealed)
    with _fenced(lease):
        return Status(await ledger.fetchval(QUERIES["settle"], *arguments, sealed, key_id))


async def settle_done(session: Session, lease: Lease, *, chain: bool) -> None:
    """Settle the transaction's delivery as done and commit, in one round trip.

    The next delivery of its ordering key is not advanced: the caller does that after the commit.
    Raises LeaseLost, having committed nothing, if the token is old. Raises TransactionEnded if the
    transaction is not the one that was begun for this run.
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
    """Takes back leases that ran out."""
    rows: list[asyncpg.Record] = await ledger.fetch(QUERIES["reap"], limit, MAX_LOSSES, lease)
    await advance(ledger, turns_of(row for row in rows if row["status"] == Status.DEAD))
    return rows


def turns_of(rows: Iterable[asyncpg.Record]) -> list[Turn]:
    """The turns of deliveries that have just left theirs, or come back to wait for it."""
    return [
        Turn(row["route"], row["handler"], row["order_key"])
        for row in rows
        if row["order_key"] is not None
    ]


class KnownEffects(NamedTuple):
    """The outside effects of deliveries that are run again."""

    kept: int = 0
    """Done before: not made again."""
    unknown: int = 0
    """Of unknown outcome."""


NO_EFFECTS: Final = KnownEffects()


class Replayed(NamedTuple):
    """A delivery that was replayed."""

    due: list[int]
    """Deliveries that may run now: itself, or another one of its key."""
    effects: KnownEffects


async def replay(
    ledger: Executor,
    delivery_id: int,
    *,
    actor: str,
    reason: str | None,
    retry_effects: bool = False,
) -> Replayed:
    """Start a fresh round of attempts. With `retry_effects`, effects of unknown outcome are made
    again. Raise TransitionRefused if the state forbids it.
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
    """Count the effects that a replay of a delivery is about."""
    [row] = await ledger.fetch(QUERIES["count_effects_of"], delivery_id)
    return KnownEffects(row["kept"], row["unknown"])


async def discard(
    ledger: Executor, delivery_id: int, *, actor: str, reason: str | None
) -> list[int]:
    """Gives up what waits or is dead; returns what may run now, another that it held up.

    Raises TransitionRefused where the state forbids it.
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
    )


def event_of(row: asyncpg.Record) -> Event:
    """The event of a row that has all its columns; where it is sealed, without what is in it."""
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
    """Text as Postgres can hold it: no NUL, no lone surrogate, bounded."""
    if error is None:
        return None
    return error[:ERROR_CHARS].replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
