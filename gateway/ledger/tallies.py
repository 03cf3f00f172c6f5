"""What happens, counted in memory, and added to the ledger minute by minute.

Whoever counts waits for nothing. What was counted since the last time is lost when its process is
killed, and added twice where the answer to a commit is lost: these are figures to look at, and
nothing decides by them.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol

import structlog

from gateway.ledger.connection import (
    COMMAND_TIMEOUT_S,
    TROUBLE,
    Executor,
    Pool,
    describe,
    open_pool,
)
from gateway.ledger.histogram import bucket_of
from gateway.ledger.queries import QUERIES

KEPT: Final = timedelta(days=8)
HOURS_KEPT: Final = timedelta(days=90)
LATEST: Final = timedelta(seconds=5)
"""How old a figure may get before it is added, where the sweep is slower."""

MOST_KEYS: Final = 10_000
"""Of a minute. Routes, handlers and outcomes are few: this is for what nobody thought of."""

MOST_HELD: Final = 20_000
"""Keys of all minutes that wait for a ledger that is away; then the oldest minute is forgotten."""

STOP_S: Final = 2.0
MINUTE_S: Final = 60

REQUESTS: Final = ""
"""The handler of what happens at a route's door."""

ALL_ROUTES: Final = ""
ALL_HANDLERS: Final = "*"
"""Under these minutes and hours have everything together, so that looking back costs the same
however many there are."""

ACKNOWLEDGED: Final = "acknowledged"
"""Verified requests that were answered, whatever with: the outcome that has their times."""

Key = tuple[str, str, str]

log = structlog.get_logger("gateway.tallies")


@dataclass(slots=True)
class Tally:
    """How often something happened, and how long it took where that is known."""

    n: int = 0
    times: dict[int, int] = field(default_factory=dict)

    def add(self, other: "Tally") -> None:
        self.n += other.n
        for bucket, n in other.times.items():
            self.times[bucket] = self.times.get(bucket, 0) + n

    @property
    def as_array(self) -> str:
        """As Postgres reads it, up to the last bucket that has any."""
        length = max(self.times, default=-1) + 1
        return "{" + ",".join(str(self.times.get(n, 0)) for n in range(length)) + "}"


class Tallies:
    """The counts of one process that the ledger does not have yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._fresh: dict[Key, Tally] = {}
        self._waiting: deque[tuple[float, dict[Key, Tally]]] = deque()
        """Set aside, with when that was."""

    def add(self, route: str, handler: str, outcome: str, seconds: float | None = None) -> None:
        """Counts one. On the path of every request and of every run."""
        key = (route, handler, outcome)
        tally = self._fresh.get(key)
        if tally is None:
            if len(self._fresh) >= MOST_KEYS:
                return
            tally = self._fresh[key] = Tally()
        tally.n += 1
        if seconds is not None:
            bucket = bucket_of(seconds)
            tally.times[bucket] = tally.times.get(bucket, 0) + 1

    async def flush(self, ledger: Executor) -> None:
        """Adds everything to the ledger. What it does not take is kept for the next time."""
        self._set_aside()
        while self._waiting:
            since, tallies = self._waiting[0]
            await _write(ledger, timedelta(seconds=self._clock() - since), tallies)
            self._waiting.popleft()

    def _set_aside(self) -> None:
        """So that what is counted while the ledger is away keeps its minute."""
        now = self._clock()
        fresh, self._fresh = self._fresh, {}
        if self._waiting and now - self._waiting[-1][0] < MINUTE_S:
            _merge(self._waiting[-1][1], fresh)
        elif fresh:
            self._waiting.append((now, fresh))
        while sum(len(tallies) for _, tallies in self._waiting) > MOST_HELD:
            log.warning("tallies_forgotten", keys=len(self._waiting.popleft()[1]))


def flush_interval(sweep: timedelta) -> timedelta:
    """Return how often a process adds its counts to the ledger, so how far they lag at most."""
    return min(sweep, LATEST)


class Kept(Protocol):
    """What is noted in memory, and added to the ledger from there."""

    async def flush(self, ledger: Executor) -> None:
        """Adds everything. What the ledger does not take is kept for the next time."""


class TallyKeeper:
    """Adds what a process noted to the ledger every few seconds, and when it stops."""

    def __init__(self, *kept: Kept, ledger: Pool, every: timedelta) -> None:
        self._kept = kept
        self._ledger = ledger
        self._every_s = flush_interval(every).total_seconds()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_forever(), name="tallies")

    async def stop(self) -> None:
        """Adds the last ones. One that is under way is waited for: broken off, nobody would know
        whether it counted."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=STOP_S)
            self._task.cancel()

    async def _keep_forever(self) -> None:
        is_last = False
        while not is_last:
            try:
                await asyncio.wait_for(self._stopping.wait(), self._every_s)
                is_last = True
            except TimeoutError:
                pass
            try:
                for one in self._kept:
                    await one.flush(self._ledger)
            except TROUBLE as error:
                log.warning("tallies_not_kept", error=describe(error))
                await self._ledger.expire_connections()


@asynccontextmanager
async def keeping(*kept: Kept, url: str, every: timedelta) -> AsyncIterator[None]:
    """Keeps them over a connection of their own, whose commits wait for no disk."""
    ledger = await open_pool(
        url,
        name="gateway tallies",
        size=1,
        command_timeout_s=COMMAND_TIMEOUT_S,
        synchronous_commit="off",
    )
    keeper = TallyKeeper(*kept, ledger=ledger, every=every)
    keeper.start()
    try:
        yield
    finally:
        await keeper.stop()
        ledger.terminate()


def _merge(into: dict[Key, Tally], more: dict[Key, Tally]) -> None:
    for key, tally in more.items():
        into.setdefault(key, Tally()).add(tally)


def _together(tallies: dict[Key, Tally]) -> dict[Key, Tally]:
    """The same of all routes, and of all handlers."""
    whole: dict[Key, Tally] = {}
    for (_, handler, outcome), tally in tallies.items():
        key = (ALL_ROUTES, handler and ALL_HANDLERS, outcome)
        whole.setdefault(key, Tally()).add(tally)
    return whole


async def _write(ledger: Executor, age: timedelta, tallies: dict[Key, Tally]) -> None:
    tallies = tallies | _together(tallies)
    keys = sorted(tallies)
    routes, handlers, outcomes = zip(*keys, strict=True)
    await ledger.execute(
        QUERIES["add_tallies"],
        age,
        KEPT,
        routes,
        handlers,
        outcomes,
        [tallies[key].n for key in keys],
        [tallies[key].as_array for key in keys],
        HOURS_KEPT,
    )
