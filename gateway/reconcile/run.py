"""One run: lists what the provider sent, notes what is missing, and has it recovered."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.ledger.bulk import read_clock
from gateway.ledger.connection import Connection
from gateway.ledger.gaps import adopt_gaps, find_unseen, give_up_old, note_gaps
from gateway.ledger.reconciliations import SCHEDULE, count_up, keep_right, step
from gateway.reconcile.listing import Listed, Listing, Page
from gateway.reconcile.recovery import MOST_ASKS, UNDER_WAY, Recovery
from gateway.reconcile.span import limits
from gateway.routes import Route

COUNT_EVERY_S: Final = 1.0
NEVER: Final = 2**31 - 1


@dataclass(slots=True, kw_only=True)
class Progress:
    """A run's row, kept up to date: not more often than anybody looks."""

    connection: Connection
    holder: Connection
    """Whose transaction is the right to reconcile the route."""
    run_id: int
    phase: str
    cursor: str | None
    missing: int | None = None
    """What a dry run has found, which leaves no gaps to count."""
    _counted_at: float = field(default=0.0)

    async def beat(self, *, now: bool = False) -> None:
        """Figures, and a sign of life."""
        if now or time.monotonic() - self._counted_at >= COUNT_EVERY_S:
            await keep_right(self.holder)
            await self.step()
            await count_up(self.connection, self.run_id, self.missing)
            self._counted_at = time.monotonic()

    async def step(self, *, listed: int = 0) -> None:
        await step(
            self.connection, self.run_id, phase=self.phase, cursor=self.cursor, listed=listed
        )

    async def enter(self, phase: str) -> None:
        self.phase = phase
        await self.beat(now=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that is under way in this process."""

    connection: Connection
    row: dict[str, Any]
    route: Route
    listing: Listing
    recovery: Recovery
    progress: Progress
    dry: set[str] = field(default_factory=set)
    """What a dry run has found to be missing."""

    async def carry_out(self) -> None:
        """To the end, from where it was left. Raises ProviderFailed, or what the ledger raises."""
        if self.row["dry_run"]:
            await self._list()
            await self.progress.beat(now=True)
            return
        await adopt_gaps(self.connection, self.route.name, self.row["id"])
        await self.progress.beat(now=True)
        if self.progress.phase == "listing":
            await self._list()
        await self.progress.enter("recovering")
        await self._give_up_old()
        await self.recovery.finish()
        await self.progress.enter("waiting")
        await self.recovery.wait()
        await self.progress.beat(now=True)

    @property
    def _is_ordered(self) -> bool:
        """Whether a person did: then what was given up is tried again, and nothing is given up for
        having been asked for too often."""
        return bool(self.row["actor"] != SCHEDULE)

    async def _list(self) -> None:
        async for page in self.listing.pages(self.progress.cursor):
            missing = await self._missing(page)
            if self.row["dry_run"]:
                self.dry.update(event.missing.event_id for event in missing)
                self.progress.missing = len(self.dry)
            else:
                await self._note(missing)
                await self.recovery.take(missing)
            self.progress.cursor = page.cursor
            await self.progress.step(listed=page.count)
            await self.progress.beat()

    async def _missing(self, page: Page) -> list[Listed]:
        ids = [event.missing.event_id for event in page.events]
        unseen = await find_unseen(self.connection, self.route.name, ids, self.route.refused_types)
        return [event for event in page.events if event.missing.event_id in unseen]

    async def _note(self, missing: Sequence[Listed]) -> None:
        await note_gaps(
            self.connection,
            self.route.name,
            self.row["id"],
            [event.missing for event in missing],
            again=self._is_ordered,
        )

    async def _give_up_old(self) -> None:
        bounds = limits(self.route, await read_clock(self.connection, None))
        await give_up_old(
            self.connection,
            self.row["id"],
            asks=NEVER if self._is_ordered else MOST_ASKS,
            patience=UNDER_WAY,
            kept_since=bounds.kept_since,
            known_since=bounds.known_since,
        )
