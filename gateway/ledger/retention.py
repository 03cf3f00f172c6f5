"""Forgets what a route no longer keeps, in small bounded steps."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Final

import asyncpg

from gateway.failpoints import reached
from gateway.ledger.connection import Pooled
from gateway.ledger.queries import QUERIES
from gateway.model import Retention

LOCK: Final = 0x7072756E65
"""One worker at a time prunes: "prune" in ASCII."""

BATCH: Final = 1_000
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
    looked_at: int = 0
    more: bool = False
    """A step came to its bound and not to the end."""

    def __add__(self, later: "Pruned") -> "Pruned":
        return Pruned(
            keys=self.keys + later.keys,
            payloads=self.payloads + later.payloads,
            dead=self.dead + later.dead,
            looked_at=self.looked_at + later.looked_at,
            more=later.more,
        )


class Pruner:
    """Walks the events from the oldest to the age at which none has to lose anything yet.

    On the way it leaves a mark at each age at which some route forgets, and later steps go on from
    these marks: what lies between them has lost its payload, keeps its key, and is most of the
    ledger. Once in a while the walk starts over, for the sake of what it had to leave behind.
    """

    def __init__(
        self, retention: Mapping[str, Retention], *, again_after: timedelta = AGAIN_AFTER
    ) -> None:
        kept = retention.values()
        self._kept = list(retention), [k.key for k in kept], [k.payload for k in kept]
        self._ages = sorted({age for k in kept for age in (k.key, k.payload)}, reverse=True)
        self._dead = cycle([(route, k.dead) for route, k in retention.items()])
        self._again_after_s = again_after.total_seconds()
        self._start_over()

    async def step(self, connection: Pooled) -> Pruned:
        """One bounded round; does nothing while another worker is at it."""
        if not self._ages:
            return Pruned()
        async with connection.transaction():
            if not await connection.fetchval(QUERIES["start_prune"], LOCK):
                return Pruned()
            dead = await self._expire_dead(connection)
            marks, walked = await self._walk(connection)
            reached("prune.held")
            pruned = await self._prune(connection, [row["held"] for row in walked if row["held"]])
            reached("prune.forgotten")
        reached("prune.committed")
        self._marks = marks  # not sooner: what is not committed has to be walked again
        is_behind = any(row["walked"] == BATCH for row in walked)
        if not is_behind and time.monotonic() >= self._again_at:
            self._start_over()
        return pruned + Pruned(
            dead=dead,
            looked_at=sum(row["walked"] for row in walked),
            more=is_behind or dead == BATCH,
        )

    def _start_over(self) -> None:
        self._marks = [START]
        self._again_at = time.monotonic() + self._again_after_s

    async def _expire_dead(self, connection: Pooled) -> int:
        """Of one route a step, in turn."""
        count: int = await connection.fetchval(QUERIES["expire_dead"], *next(self._dead), BATCH)
        return count

    async def _walk(self, connection: Pooled) -> tuple[list[Mark], list[asyncpg.Record]]:
        """From each mark to its age; a younger age waits until the older one has been reached."""
        marks, walked = [*self._marks], []
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

    async def _prune(self, connection: Pooled, held: list[str]) -> Pruned:
        total = Pruned()
        for places in held:
            [row] = await connection.fetch(QUERIES["prune_events"], places, *self._kept)
            total += Pruned(keys=row["keys"], payloads=row["payloads"])
        return total
