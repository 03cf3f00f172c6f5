"""Takes from the ledger what it holds of one subject, and leaves the keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import asyncpg

from gateway.failpoints import reached
from gateway.ledger.connection import Connection, Executor, Pooled
from gateway.ledger.queries import QUERIES
from gateway.ledger.turns import Turn, advance

Key = tuple[str, str]
"""Route and event id."""

Mark = tuple[datetime, str, str]
START: Final[Mark] = (datetime(1970, 1, 1, tzinfo=UTC), "", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Who erases, and why."""

    actor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What an erasure took, or would take."""

    events: int = 0
    pending: int = 0
    """Deliveries that waited, and are given up."""
    dead: int = 0
    """Dead letters that are given up."""
    running: tuple[Key, ...] = ()
    """Events that are left alone, because a delivery of theirs runs."""
    due: tuple[int, ...] = ()
    """Deliveries of others that may run now."""
    rejected: int = 0
    """Refused requests in which the subject was named."""

    def __add__(self, later: "Erased") -> "Erased":
        return Erased(
            events=self.events + later.events,
            pending=self.pending + later.pending,
            dead=self.dead + later.dead,
            running=self.running + later.running,
            due=self.due + later.due,
            rejected=self.rejected + later.rejected,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """Who had an event erased, when and why."""

    at: datetime
    actor: str
    reason: str | None


async def find_subject(
    ledger: Executor, account: str, route: str | None, after: Mark, limit: int
) -> tuple[list[Key], Mark]:
    """The next events of an account, and the mark behind them."""
    rows = await ledger.fetch(QUERIES["find_subject"], account, *after, route, limit)
    if not rows:
        return [], after
    last = rows[-1]
    keys = [(row["route"], row["event_id"]) for row in rows]
    return keys, (last["received_at"], last["route"], last["event_id"])


async def count_subject(ledger: Executor, keys: Sequence[Key]) -> Erased:
    """What an erasure of these events would take, and changes nothing."""
    rows = await ledger.fetch(QUERIES["count_subject"], *_columns(keys))
    free = [row for row in rows if not row["is_running"]]
    return Erased(
        events=len(free),
        pending=sum(row["pending"] for row in free),
        dead=sum(row["dead"] for row in free),
        running=tuple(_key(row) for row in rows if row["is_running"]),
    )


async def erase_events(
    ledger: Connection | Pooled, keys: Sequence[Key], order: Order
) -> tuple[Erased, list[Key]]:
    """Erases these events in one transaction, as far as nothing of them runs.

    Returns those beside it that another transaction holds just now.
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
            order.actor,
            order.reason,
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
    """Takes an account out of what people have said and asked for."""
    await ledger.execute(QUERIES["scrub_words"], account)


async def find_erasure(ledger: Executor, route: str, event_id: str) -> Erasure | None:
    """When an event was erased; None where it was not."""
    row = await ledger.fetchrow(QUERIES["find_erasure"], route, event_id)
    return None if row is None else Erasure(**dict(row))


def _turns(rows: Sequence[asyncpg.Record]) -> list[Turn]:
    """Of deliveries that were given up: another of their key may run."""
    return [
        Turn(row["route"], handler, key)
        for row in rows
        for handler, key in zip(row["handlers"], row["order_keys"], strict=True)
    ]


def _key(row: asyncpg.Record) -> Key:
    return row["route"], row["event_id"]


def _columns(keys: Sequence[Key]) -> tuple[list[str], list[str]]:
    return [route for route, _ in keys], [event_id for _, event_id in keys]
