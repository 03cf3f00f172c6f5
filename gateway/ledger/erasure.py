"""Erases everything about one subject from the ledger, except the deduplication keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from gateway.base.failpoints import reached
from gateway.ledger.connection import QUERIES, Connection, Executor, Pooled
from gateway.ledger.ordering import OrderingKey, advance
from gateway.ledger.walk import Counts, EventCursor

Key = tuple[str, str]
"""Route and event id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequest:
    """The author and the reason of an erasure."""

    actor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased(Counts):
    """The counts of an erasure, done or planned."""

    events: int = 0
    pending: int = 0
    """Pending deliveries, which are discarded."""
    dead: int = 0
    """Dead letters, which are discarded."""
    running: tuple[Key, ...] = ()
    """Events that are skipped, because a delivery of theirs is running."""
    due: tuple[int, ...] = ()
    """Deliveries of other events that may run now."""
    rejected: int = 0
    """Rejected requests that name the subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """The author, time and reason of an event's erasure."""

    at: datetime
    actor: str
    reason: str | None


async def find_subject(
    ledger: Executor, account: str, route: str | None, cursor: EventCursor, limit: int
) -> tuple[list[Key], EventCursor]:
    """Return the next events of an account, and the cursor after them."""
    rows = await ledger.fetch(QUERIES["find_subject"], account, *cursor, route, limit)
    if not rows:
        return [], cursor
    last = rows[-1]
    keys = [(row["route"], row["event_id"]) for row in rows]
    return keys, (last["received_at"], last["route"], last["event_id"])


async def count_subject(ledger: Executor, keys: Sequence[Key]) -> Erased:
    """Count what an erasure of these events would delete, without changing anything."""
    rows = await ledger.fetch(QUERIES["count_subject"], *_columns(keys))
    free = [row for row in rows if not row["is_running"]]
    return Erased(
        events=len(free),
        pending=sum(row["pending"] for row in free),
        dead=sum(row["dead"] for row in free),
        running=tuple(_key(row) for row in rows if row["is_running"]),
    )


async def erase_events(
    ledger: Connection | Pooled, keys: Sequence[Key], request: ErasureRequest
) -> tuple[Erased, list[Key]]:
    """Erase these events in one transaction, except those with a running delivery.

    Also returns the events that another transaction has locked.
    """
    async with ledger.transaction():
        found = await ledger.fetch(QUERIES["hold_subject"], *_columns(keys))
        held = [_key(row) for row in found if row["is_held"]]
        rows = await ledger.fetch(QUERIES["hold_deliveries"], *_columns(held))
        reached("erase.held")
        rows = await ledger.fetch(
            QUERIES["erase_events"],
            *_columns(held),
            [row["id"] for row in rows],
            request.actor,
            request.reason,
        )
        reached("erase.taken")
    reached("erase.committed")
    erased = Erased(
        events=sum(row["is_erased"] for row in rows),
        pending=sum(row["pending"] for row in rows),
        dead=sum(row["dead"] for row in rows),
        running=tuple(_key(row) for row in rows if row["is_running"]),
        due=tuple(await advance(ledger, _turns(rows))),
    )
    locked = [_key(row) for row in rows if row["is_locked"] and not row["is_running"]]
    return erased, locked + [_key(row) for row in found if not row["is_held"]]


async def scrub_words(ledger: Executor, account: str) -> None:
    """Remove an account from audit entries and bulk operations."""
    await ledger.execute(QUERIES["scrub_words"], account)


async def find_erasure(ledger: Executor, route: str, event_id: str) -> Erasure | None:
    """Return the erasure of an event, or None if it was not erased."""
    row = await ledger.fetchrow(QUERIES["find_erasure"], route, event_id)
    return None if row is None else Erasure(**dict(row))


def _turns(rows: Sequence[asyncpg.Record]) -> list[OrderingKey]:
    """Return the ordering keys of discarded deliveries: another delivery of the key may run."""
    return [
        OrderingKey(row["route"], handler, key)
        for row in rows
        for handler, key in zip(row["handlers"], row["order_keys"], strict=True)
    ]


def _key(row: asyncpg.Record) -> Key:
    return row["route"], row["event_id"]


def _columns(keys: Sequence[Key]) -> tuple[list[str], list[str]]:
    return [route for route, _ in keys], [event_id for _, event_id in keys]
