"""Forgets what a route no longer keeps, in small bounded steps."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg

from gateway.failpoints import reached
from gateway.ledger.connection import Connection, Executor, Pooled
from gateway.ledger.queries import QUERIES
from gateway.model import Retention

LOCK: Final = 0x7072756E65
"""One worker at a time prunes: "prune" in ASCII."""

BATCH: Final = 1_000
ROUNDED: Final = timedelta(days=40)
"""By so much at most a day is later, under which something is filed, than its retention asks."""

AGAIN_AFTER: Final = timedelta(hours=6)
"""When to look again at what was passed and kept: most of it waited then, or was replayed since."""

Mark = tuple[datetime, str, str]
START: Final[Mark] = (datetime(1970, 1, 1, tzinfo=UTC), "", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What a step forgot, or several."""

    keys: int = 0
    payloads: int = 0
    dead: int = 0
    audit: int = 0
    """Rows of the audit log."""
    days: int = 0
    """Tables of payloads or attempts that were dropped, each of one day."""
    looked_at: int = 0
    more: bool = False
    """A step came to its bound and not to the end."""

    def __add__(self, later: "Pruned") -> "Pruned":
        return Pruned(
            keys=self.keys + later.keys,
            payloads=self.payloads + later.payloads,
            dead=self.dead + later.dead,
            audit=self.audit + later.audit,
            days=self.days + later.days,
            looked_at=self.looked_at + later.looked_at,
            more=later.more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far a walk has come."""

    marks: tuple[Mark, ...] = (START,)
    """One per age that was reached, as of the last step."""
    turn: int = 0
    """Whose dead letters are next."""
    idle: int = 0
    """Steps in a row that came to the end."""


class Pruner:
    """Walks the events from the oldest to the age at which none has to lose anything yet.

    On the way it leaves a mark at each age at which some route forgets, and later steps go on from
    these marks: what lies between them has lost its payload, keeps its key, and is most of the
    ledger. Once in a while the walk starts over, for the sake of what it had to leave behind.
    """

    def __init__(
        self,
        retention: Mapping[str, Retention],
        *,
        audit: timedelta | None = None,
        again_after: timedelta = AGAIN_AFTER,
        place: Place | None = None,
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
        self._place = place or Place()

    @property
    def place(self) -> Place:
        """Where the next step goes on."""
        return self._place

    @property
    def is_through(self) -> bool:
        """Whether it has come to the end, and looked at the dead letters of every route since."""
        return self._place.idle >= len(self._dead)

    async def step(self, connection: Connection | Pooled, *, waits: bool = False) -> Pruned:
        """One bounded round. While another worker is at it: waits for that, or does nothing."""
        if not self._ages:
            return Pruned()
        async with connection.transaction():
            if waits:
                await connection.execute(QUERIES["await_prune"], LOCK)
            if not await connection.fetchval(QUERIES["start_prune"], LOCK):
                return Pruned()
            expired = await self._expire(connection)
            marks, walked = await self._walk(connection)
            reached("prune.held")
            pruned = await self._prune(connection, [row["held"] for row in walked if row["held"]])
            reached("prune.forgotten")
        reached("prune.committed")
        is_behind = any(row["walked"] == BATCH for row in walked)
        more = is_behind or BATCH in (expired.dead, expired.audit)
        self._place = Place(  # not sooner: what is not committed has to be walked again
            marks=tuple(marks),
            turn=(self._place.turn + 1) % len(self._dead),
            idle=0 if more else self._place.idle + 1,
        )
        if not is_behind and time.monotonic() >= self._again_at:
            self._again_at = time.monotonic() + self._again_after_s
            self._place = replace(self._place, marks=(START,))
        looked_at = sum(row["walked"] for row in walked)
        return pruned + expired + Pruned(looked_at=looked_at, more=more)

    async def _expire(self, connection: Connection | Pooled) -> Pruned:
        """Dead letters of one route a step, in turn, and what was done long ago."""
        turn = self._dead[self._place.turn % len(self._dead)]
        dead: int = await connection.fetchval(QUERIES["expire_dead"], *turn, BATCH)
        if self._audit is None:
            return Pruned(dead=dead)
        audit: int = await connection.fetchval(QUERIES["expire_audit"], self._audit, BATCH)
        return Pruned(dead=dead, audit=audit)

    async def _walk(
        self, connection: Connection | Pooled
    ) -> tuple[list[Mark], list[asyncpg.Record]]:
        """From each mark to its age; a younger age waits until the older one has been reached."""
        marks, walked = [*self._place.marks], []
        for n, age in enumerate(self._ages):
            if n == len(marks):
                marks.append(marks[-1])
            row = await connection.fetchrow(
                QUERIES["hold_events"], age, *marks[n], BATCH, *self._kept
            )
            if row is None:
                continue
            marks[n] = (row["received_at"], row["route"], row["event_id"])
            walked.append(row)
            if row["walked"] == BATCH:
                break
        return marks, walked

    async def _prune(self, connection: Connection | Pooled, held: list[str]) -> Pruned:
        total = Pruned()
        for places in held:
            [row] = await connection.fetch(
                QUERIES["prune_events"], places, *self._kept, self._far_days
            )
            total += Pruned(keys=row["keys"], payloads=row["payloads"])
        return total


async def count_prunable(
    ledger: Executor, retention: Mapping[str, Retention], mark: Mark
) -> tuple[Pruned, Mark]:
    """What a prune would forget of the next events, and changes nothing."""
    kept = retention.values()
    youngest = min(age for k in kept for age in (k.key, k.payload))
    columns = list(retention), [k.key for k in kept], [k.payload for k in kept]
    row = await ledger.fetchrow(QUERIES["count_prunable"], youngest, *mark, BATCH, *columns)
    if row is None:
        return Pruned(), mark
    counted = Pruned(
        keys=row["keys"],
        payloads=row["payloads"],
        looked_at=row["walked"],
        more=row["walked"] == BATCH,
    )
    return counted, (row["received_at"], row["route"], row["event_id"])


async def count_expired(
    ledger: Executor, retention: Mapping[str, Retention], audit: timedelta
) -> Pruned:
    """Dead letters and rows of the audit that a prune would forget."""
    dead = [k.dead for k in retention.values()]
    [row] = await ledger.fetch(
        QUERIES["count_expired"], list(retention), dead, audit_age(retention, audit)
    )
    return Pruned(dead=row["dead"], audit=row["audit"])


async def list_routes(ledger: Executor) -> list[str]:
    """Routes that have events, in the configuration or not."""
    return [row["route"] for row in await ledger.fetch(QUERIES["list_routes"])]


def audit_age(retention: Mapping[str, Retention], audit: timedelta) -> timedelta:
    """The audit is kept at least as long as any key: it tells who erased the rest."""
    return max([audit, *(k.key for k in retention.values())])
