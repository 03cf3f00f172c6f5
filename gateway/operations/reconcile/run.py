"""One run: its time span; list the sent events, record the missing ones as gaps, recover them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from gateway.base.errors import CommandFailed
from gateway.base.units import format_duration
from gateway.config.routes import Route
from gateway.ledger.bulk import read_clock
from gateway.ledger.connection import Connection
from gateway.ledger.reconciliations import (
    SCHEDULE,
    adopt_gaps,
    count_up,
    find_unseen,
    give_up_old,
    keep_right,
    note_gaps,
    step,
)
from gateway.operations.reconcile.api import ListedEvent, Listing, ProviderPage
from gateway.operations.reconcile.github import kept_by
from gateway.operations.reconcile.recovery import MOST_ASKS, UNDER_WAY, Recovery
from gateway.operations.reconcile.stripe import KEPT

MARGIN: Final = timedelta(hours=1)
"""Safety margin, because event ids are forgotten while a run is in progress."""

ON_ITS_WAY: Final = timedelta(minutes=1)
"""Newer events are not listed: they may still be on their way, and are not gaps."""

OVERLAP: Final = timedelta(minutes=15)
"""Overlap with the previous run, because listings may lag behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far back a route can be reconciled."""

    kept_since: datetime
    """From when on the provider still has its events."""
    known_since: datetime
    """From when on the ledger still has all event ids that it received."""


def kept(route: Route) -> timedelta:
    """Return how long the route's provider keeps its events."""
    if route.provider.name == "stripe" or route.reconcile is None:
        return KEPT
    return kept_by(route.reconcile.api_url)


def limits(route: Route, now: datetime) -> Limits:
    return Limits(kept_since=now - kept(route), known_since=now - route.retention.key + MARGIN)


def cut(route: Route, since: datetime, now: datetime) -> tuple[datetime, str | None]:
    """Return the earliest possible start, and the reason if it is later than `since`.

    The id of an event older than `retention.key` may have been received and forgotten, so the event
    would be processed again.
    """
    if since > now:
        raise CommandFailed("--since: found a time in the future; expected one in the past")
    bounds = limits(route, now)
    floor = max(bounds.kept_since, bounds.known_since)
    if since >= floor:
        return since, None
    if bounds.known_since > bounds.kept_since:
        key = format_duration(route.retention.key)
        return floor, f"cut to {_ago(now - floor)}: older keys are forgotten (retention.key {key})"
    return floor, f"cut to {_ago(now - floor)}: {route.provider.name} keeps no more"


def _ago(age: timedelta) -> str:
    return format_duration(timedelta(seconds=int(age.total_seconds())))


COUNT_EVERY_S: Final = 1.0
NEVER: Final = 2**31 - 1


@dataclass(slots=True, kw_only=True)
class Progress:
    """Updates a run's row, at most once per COUNT_EVERY_S."""

    connection: Connection
    holder: Connection
    """The connection whose transaction holds the lock of the route."""
    run_id: int
    phase: str
    cursor: str | None
    missing: int | None = None
    """Count of a dry run, which records no gaps that could be counted."""
    _counted_at: float = field(default=0.0)

    async def beat(self, *, now: bool = False) -> None:
        """Update the counts and the heartbeat."""
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
class ReconcileRun:
    """A run in progress in this process."""

    connection: Connection
    row: dict[str, Any]
    route: Route
    listing: Listing
    recovery: Recovery
    progress: Progress
    dry: set[str] = field(default_factory=set)
    """Ids of the events that a dry run has found missing."""

    async def carry_out(self) -> None:
        """Run from the saved position to the end.

        Raises ProviderFailed and errors of the ledger.
        """
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
    def _is_requested(self) -> bool:
        """Whether a user started the run.

        Such a run retries gaps that were given up, and gives up none for too many requests.
        """
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

    async def _missing(self, page: ProviderPage) -> list[ListedEvent]:
        ids = [event.missing.event_id for event in page.events]
        unseen = await find_unseen(self.connection, self.route.name, ids, self.route.refused_types)
        return [event for event in page.events if event.missing.event_id in unseen]

    async def _note(self, missing: Sequence[ListedEvent]) -> None:
        await note_gaps(
            self.connection,
            self.route.name,
            self.row["id"],
            [event.missing for event in missing],
            again=self._is_requested,
        )

    async def _give_up_old(self) -> None:
        bounds = limits(self.route, await read_clock(self.connection, None))
        await give_up_old(
            self.connection,
            self.row["id"],
            asks=NEVER if self._is_requested else MOST_ASKS,
            patience=UNDER_WAY,
            kept_since=bounds.kept_since,
            known_since=bounds.known_since,
        )
