"""Deletes data that is past its retention, in small bounded steps."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import asyncpg

from gateway.base.failpoints import reached
from gateway.base.model import Retention
from gateway.ledger.connection import QUERIES, Connection, Executor, Pooled
from gateway.ledger.walk import FIRST_EVENT, Counts, EventCursor

LOCK: Final = 0x7072756E65
"""The advisory lock that lets one worker at a time prune: "prune" in ASCII."""

BATCH: Final = 1_000
ROUNDED: Final = timedelta(days=40)
"""The maximum by which the day of a partition is later than the retention requires."""

AGAIN_AFTER: Final = timedelta(hours=6)
"""How soon the walk starts over to check events that it passed and kept: most of them were pending
then, or were replayed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned(Counts):
    """The counts of one or more steps."""

    keys: int = 0
    payloads: int = 0
    dead: int = 0
    audit: int = 0
    """Deleted rows of the audit log."""
    days: int = 0
    """Dropped daily partitions of payloads or attempts."""
    looked_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneCursor:
    """The progress of a walk."""

    events: tuple[EventCursor, ...] = (FIRST_EVENT,)
    """One cursor per age that was reached, after the last step."""
    turn: int = 0
    """The index of the route whose dead letters are next."""
    idle: int = 0
    """The number of steps in a row that reached the end."""


class Pruner:
    """Walks the events from the oldest to the age at which none has to lose anything yet.

    On the way it keeps a cursor at each age at which some route's data expires, and later steps
    continue from these cursors. The events between them have lost their payload but keep their key,
    and they are most of the ledger. Once in a while the walk starts over, for the events that it
    had to keep.
    """

    def __init__(
        self,
        retention: Mapping[str, Retention],
        *,
        audit: timedelta | None = None,
        again_after: timedelta = AGAIN_AFTER,
        cursor: PruneCursor | None = None,
    ) -> None:
        kept = retention.values()
        self._kept = list(retention), [k.key for k in kept], [k.payload for k in kept]
        self._ages = sorted({age for k in kept for age in (k.key, k.payload)}, reverse=True)
        longest = max((k.key for k in kept), default=timedelta())
        self._far_days = (longest + ROUNDED).days
        self._dead = [(route, k.dead) for route, k in retention.items()]
        self._audit = None if audit is None else audit_age(retention, audit)
        self._again_after_s = again_after.total_seconds()
        self._again_at = time.monotonic() + self._again_after_s
        self._cursor = cursor or PruneCursor()
        self.is_behind = True
        """Whether the last step reached its limit, and not the end."""

    @property
    def cursor(self) -> PruneCursor:
        """The cursor of the next step."""
        return self._cursor

    @property
    def is_through(self) -> bool:
        """Whether the walk reached the end, and has since checked every route's dead letters."""
        return self._cursor.idle >= len(self._dead)

    async def step(self, connection: Connection | Pooled, *, waits: bool = False) -> Pruned:
        """Run one bounded step.

        While another worker prunes, it waits for that worker if `waits`, or else does nothing.
        """
        self.is_behind = False
        if not self._ages:
            return Pruned()
        async with connection.transaction():
            if waits:
                await connection.execute(QUERIES["await_prune"], LOCK)
            if not await connection.fetchval(QUERIES["start_prune"], LOCK):
                return Pruned()
            expired = await self._expire(connection)
            cursors, walked = await self._walk(connection)
            reached("prune.held")
            pruned = await self._prune(connection, [row["held"] for row in walked if row["held"]])
            reached("prune.forgotten")
        reached("prune.committed")
        has_more_events = any(row["walked"] == BATCH for row in walked)
        self.is_behind = has_more_events or BATCH in (expired.dead, expired.audit)
        # not earlier: if the commit fails, the same rows have to be walked again
        self._cursor = PruneCursor(
            events=tuple(cursors),
            turn=(self._cursor.turn + 1) % len(self._dead),
            idle=0 if self.is_behind else self._cursor.idle + 1,
        )
        if not has_more_events and time.monotonic() >= self._again_at:
            self._again_at = time.monotonic() + self._again_after_s
            self._cursor = replace(self._cursor, events=(FIRST_EVENT,))
        looked_at = sum(row["walked"] for row in walked)
        return pruned + expired + Pruned(looked_at=looked_at)

    async def _expire(self, connection: Connection | Pooled) -> Pruned:
        """Delete expired dead letters of one route per step, in turn, and expired audit entries."""
        turn = self._dead[self._cursor.turn % len(self._dead)]
        dead: int = await connection.fetchval(QUERIES["expire_dead"], *turn, BATCH)
        if self._audit is None:
            return Pruned(dead=dead)
        audit: int = await connection.fetchval(QUERIES["expire_audit"], self._audit, BATCH)
        return Pruned(dead=dead, audit=audit)

    async def _walk(
        self, connection: Connection | Pooled
    ) -> tuple[list[EventCursor], list[asyncpg.Record]]:
        """Walk from each cursor to its age.

        A younger age waits until the older one has been reached.
        """
        cursors, walked = [*self._cursor.events], []
        for n, age in enumerate(self._ages):
            if n == len(cursors):
                cursors.append(cursors[-1])
            row = await connection.fetchrow(
                QUERIES["hold_events"], age, *cursors[n], BATCH, *self._kept
            )
            if row is None:
                continue
            cursors[n] = (row["received_at"], row["route"], row["event_id"])
            walked.append(row)
            if row["walked"] == BATCH:
                break
        return cursors, walked

    async def _prune(self, connection: Connection | Pooled, held: list[str]) -> Pruned:
        total = Pruned()
        for places in held:
            [row] = await connection.fetch(
                QUERIES["prune_events"], places, *self._kept, self._far_days
            )
            total += Pruned(keys=row["keys"], payloads=row["payloads"])
        return total


async def count_prunable(
    ledger: Executor, retention: Mapping[str, Retention], cursor: EventCursor
) -> tuple[Pruned, EventCursor | None]:
    """Count the data that a prune would delete of the next events, without changing anything.

    Also returns the cursor after them, or None at the end.
    """
    kept = retention.values()
    youngest = min(age for k in kept for age in (k.key, k.payload))
    columns = list(retention), [k.key for k in kept], [k.payload for k in kept]
    row = await ledger.fetchrow(QUERIES["count_prunable"], youngest, *cursor, BATCH, *columns)
    if row is None:
        return Pruned(), None
    counted = Pruned(
        keys=row["keys"],
        payloads=row["payloads"],
        looked_at=row["walked"],
    )
    following = (row["received_at"], row["route"], row["event_id"])
    return counted, following if row["walked"] == BATCH else None


async def count_expired(
    ledger: Executor, retention: Mapping[str, Retention], audit: timedelta
) -> Pruned:
    """Count the dead letters and audit entries that a prune would delete."""
    dead = [k.dead for k in retention.values()]
    [row] = await ledger.fetch(
        QUERIES["count_expired"], list(retention), dead, audit_age(retention, audit)
    )
    return Pruned(dead=row["dead"], audit=row["audit"])


async def list_routes(ledger: Executor) -> list[str]:
    """Return the routes that have events, even if they are not in the configuration."""
    return [row["route"] for row in await ledger.fetch(QUERIES["list_routes"])]


def audit_age(retention: Mapping[str, Retention], audit: timedelta) -> timedelta:
    """Return the retention of the audit log, at least that of any key.

    The audit log shows who erased the other data.
    """
    return max([audit, *(k.key for k in retention.values())])
