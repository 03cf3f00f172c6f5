"""Statistics: counts and histograms per minute, and their history."""

import asyncio
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

import structlog

from gateway.base.model import Outcome
from gateway.ledger.connection import (
    COMMAND_TIMEOUT_S,
    QUERIES,
    TROUBLE,
    Executor,
    Pool,
    describe,
    open_pool,
)

SHORTEST_S: Final = 0.0001
GROWTH: Final = 1.2
LAST: Final = 120
"""The bucket of everything longer: three and a half days."""

ERROR: Final = (GROWTH - 1) / (GROWTH + 1)
"""The maximum relative error of the time that represents a bucket."""

_LONGEST_S: Final = tuple(SHORTEST_S * GROWTH**bucket for bucket in range(LAST))
"""The upper bounds of all buckets but the last. A lookup takes a fifth of the time of a
logarithm."""


def bucket_of(seconds: float) -> int:
    """Return the bucket of a time: 0 up to the shortest, n up to GROWTH ** n times as long."""
    return bisect_left(_LONGEST_S, seconds)


def seconds_of(bucket: int) -> float:
    """Return the time that represents a bucket: proportionally equally far from both ends."""
    return SHORTEST_S * GROWTH**bucket * (1 - ERROR)


def percentile(buckets: Mapping[int, int], share: float) -> float | None:
    """Return the time in seconds below which this share of the times lies. None without times."""
    rank = share * (sum(buckets.values()) - 1)
    seen = 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen > rank:
            return seconds_of(bucket)
    return None


KEPT: Final = timedelta(days=8)
HOURS_KEPT: Final = timedelta(days=90)
LATEST: Final = timedelta(seconds=5)
"""The maximum delay before a count is added, if the sweep interval is longer."""

MOST_KEYS: Final = 10_000
"""The limit per minute. Routes, handlers and outcomes are few: this guards against unforeseen
cases."""

MOST_HELD: Final = 20_000
"""The limit over all minutes that wait while the ledger is away. Beyond it the oldest minute is
dropped."""

STOP_S: Final = 2.0
MINUTE_S: Final = 60

REQUESTS: Final = ""
"""Stands for the handler in the counts of a route's requests."""

ALL_ROUTES: Final = ""
ALL_HANDLERS: Final = "*"
"""Stand for all routes and all handlers together, so that reading the history costs the same
however many there are."""

ACKNOWLEDGED: Final = "acknowledged"
"""The outcome that has the response times of all verified requests, whatever the response."""

Key = tuple[str, str, str]

log = structlog.get_logger("gateway.tallies")


@dataclass(slots=True)
class StatsEntry:
    """A count, with a histogram of durations if they are known."""

    n: int = 0
    times: dict[int, int] = field(default_factory=dict)

    def add(self, other: "StatsEntry") -> None:
        self.n += other.n
        for bucket, n in other.times.items():
            self.times[bucket] = self.times.get(bucket, 0) + n

    @property
    def as_array(self) -> str:
        """The histogram as an array literal of Postgres, up to the last non-empty bucket."""
        length = max(self.times, default=-1) + 1
        return "{" + ",".join(str(self.times.get(n, 0)) for n in range(length)) + "}"


class MinuteStats:
    """The counts of one process that are not in the ledger yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._fresh: dict[Key, StatsEntry] = {}
        self._waiting: deque[tuple[float, dict[Key, StatsEntry]]] = deque()
        """Earlier counts, with the time at which they were set aside."""

    def add(self, route: str, handler: str, outcome: str, seconds: float | None = None) -> None:
        """Count one. Called for every request and every run."""
        key = (route, handler, outcome)
        tally = self._fresh.get(key)
        if tally is None:
            if len(self._fresh) >= MOST_KEYS:
                return
            tally = self._fresh[key] = StatsEntry()
        tally.n += 1
        if seconds is not None:
            bucket = bucket_of(seconds)
            tally.times[bucket] = tally.times.get(bucket, 0) + 1

    async def flush(self, ledger: Executor) -> None:
        """Add all counts to the ledger. If that fails, they are kept for the next time."""
        self._set_aside()
        while self._waiting:
            since, stats = self._waiting[0]
            await _write(ledger, timedelta(seconds=self._clock() - since), stats)
            self._waiting.popleft()

    def _set_aside(self) -> None:
        """Set the counts aside, so that counts from an outage of the ledger keep their minute."""
        now = self._clock()
        fresh, self._fresh = self._fresh, {}
        if self._waiting and now - self._waiting[-1][0] < MINUTE_S:
            _merge(self._waiting[-1][1], fresh)
        elif fresh:
            self._waiting.append((now, fresh))
        while sum(len(stats) for _, stats in self._waiting) > MOST_HELD:
            log.warning("tallies_forgotten", keys=len(self._waiting.popleft()[1]))


def flush_interval(sweep: timedelta) -> timedelta:
    """Return how often a process adds its counts to the ledger, which is the maximum lag."""
    return min(sweep, LATEST)


class PendingStats(Protocol):
    """Data that is collected in memory and flushed to the ledger."""

    async def flush(self, ledger: Executor) -> None:
        """Add all data to the ledger. If that fails, it is kept for the next time."""


class StatsWriter:
    """Flushes the data of a process to the ledger every few seconds, and when it stops."""

    def __init__(self, *kept: PendingStats, ledger: Pool, every: timedelta) -> None:
        self._kept = kept
        self._ledger = ledger
        self._every_s = flush_interval(every).total_seconds()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_forever(), name="tallies")

    async def stop(self) -> None:
        """Flush for the last time.

        A flush in progress is not interrupted, because its result would be unknown.
        """
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
async def keeping(*kept: PendingStats, url: str, every: timedelta) -> AsyncIterator[None]:
    """Flush over a separate connection, whose commits do not wait for the disk."""
    ledger = await open_pool(
        url,
        name="gateway tallies",
        size=1,
        command_timeout_s=COMMAND_TIMEOUT_S,
        synchronous_commit="off",
    )
    keeper = StatsWriter(*kept, ledger=ledger, every=every)
    keeper.start()
    try:
        yield
    finally:
        await keeper.stop()
        ledger.terminate()


def _merge(into: dict[Key, StatsEntry], more: dict[Key, StatsEntry]) -> None:
    for key, tally in more.items():
        into.setdefault(key, StatsEntry()).add(tally)


def _together(stats: dict[Key, StatsEntry]) -> dict[Key, StatsEntry]:
    """Return the totals over all routes and all handlers."""
    whole: dict[Key, StatsEntry] = {}
    for (_, handler, outcome), tally in stats.items():
        key = (ALL_ROUTES, handler and ALL_HANDLERS, outcome)
        whole.setdefault(key, StatsEntry()).add(tally)
    return whole


async def _write(ledger: Executor, age: timedelta, stats: dict[Key, StatsEntry]) -> None:
    stats = stats | _together(stats)
    keys = sorted(stats)
    routes, handlers, outcomes = zip(*keys, strict=True)
    await ledger.execute(
        QUERIES["add_tallies"],
        age,
        KEPT,
        routes,
        handlers,
        outcomes,
        [stats[key].n for key in keys],
        [stats[key].as_array for key in keys],
        HOURS_KEPT,
    )


HOUR: Final = timedelta(hours=1)
TAKEN: Final = frozenset({"accepted", "duplicate", "ignored", ACKNOWLEDGED})
"""All other outcomes of requests are error codes of rejected requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The length of a history and its step: minutes or hours."""

    length: timedelta
    step: timedelta

    @property
    def steps(self) -> int:
        return self.length // self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The counts of each step."""

    start: datetime
    requests: Sequence[Mapping[str, int]]
    """Counts by outcome, with all rejected requests together as `refused`."""
    runs: Sequence[Mapping[str, int]]
    acknowledged: Mapping[int, int]
    """The histogram of the acknowledgement times of the whole span."""
    ran: Mapping[int, int]

    def acknowledged_ms(self, share: float) -> float | None:
        return _ms(percentile(self.acknowledged, share))

    def ran_ms(self, share: float) -> float | None:
        return _ms(percentile(self.ran, share))


async def read_history(ledger: Executor, span: Span) -> History:
    """Read the history.

    The number of rows depends on steps and outcomes, not on events and handlers.
    """
    by_hour = span.step >= HOUR
    name = "history_by_hour" if by_hour else "history_by_minute"
    start: datetime = await ledger.fetchval(
        QUERIES["history_start"], "hour" if by_hour else "minute", span.length - span.step
    )
    requests = [defaultdict[str, int](int) for _ in range(span.steps)]
    runs = [defaultdict[str, int](int) for _ in range(span.steps)]
    for row in await ledger.fetch(QUERIES[name], start):
        step = (row["at"] - start) // span.step
        if 0 <= step < span.steps:
            if row["is_request"]:
                outcome = row["outcome"] if row["outcome"] in TAKEN else "refused"
                requests[step][outcome] += row["n"]
            else:
                runs[step][row["outcome"]] += row["n"]
    name = "times_by_hour" if by_hour else "times_by_minute"
    times: dict[bool, dict[int, int]] = {True: {}, False: {}}
    outcomes = [ACKNOWLEDGED, Outcome.DONE, Outcome.RETRY, Outcome.DEAD]
    for row in await ledger.fetch(QUERIES[name], start, outcomes):
        times[row["is_request"]][row["bucket"]] = row["n"]
    return History(
        start=start, requests=requests, runs=runs, acknowledged=times[True], ran=times[False]
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
