"""Building blocks of metrics: cached questions, counters kept elsewhere, event loop delay."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

ASK_EVERY_S: Final = 5.0
"""Minimum time between two queries, so that a flood of scrapes puts no load on other systems."""

WAIT_S: Final = 1.0
"""How long a scrape waits for a result before it shows the previous one."""


class CachedQuestion:
    """A query that is run on demand, by one task at a time."""

    def __init__(
        self, ask: Callable[[], Awaitable[None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._asked_at = clock() - ASK_EVERY_S
        self._task: asyncio.Future[None] | None = None

    async def refresh(self) -> None:
        """Run the query if the last one is old enough, and wait a moment for the result."""
        if self._task is None or self._task.done():
            if self._clock() - self._asked_at < ASK_EVERY_S:
                return
            self._asked_at = self._clock()
            self._task = asyncio.ensure_future(self._ask())
        await asyncio.wait({self._task}, timeout=WAIT_S)


Family = CounterMetricFamily | GaugeMetricFamily
Samples = Callable[[], Iterable[tuple[Sequence[str], float]]]


class DeferredCounter(Collector):
    """A metric whose values are read when it is collected."""

    def __init__(
        self,
        family: Callable[..., Family],
        name: str,
        help: str,
        labels: Sequence[str],
        registry: CollectorRegistry,
    ) -> None:
        self._make: Callable[[], Family] = lambda: family(name, help, labels=labels)
        self.read: Samples = lambda: ()
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        family = self._make()
        for labels, value in self.read():
            family.add_metric(labels, value)
        yield family


def each(counts: Mapping[str, int]) -> Iterable[tuple[Sequence[str], float]]:
    """Return one sample per value of a single label."""
    return [((name,), n) for name, n in list(counts.items())]


TICK_S: Final = 0.25
WINDOW_S: Final = 30.0
"""The maximum covers one to two windows, so a scrape every half minute misses no peak."""


class LoopMonitor:
    """A task that wakes up several times a second and measures how late it is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._expected_at = self._window_at = clock()
        self._worst_s = self._worst_before_s = 0.0

    async def beat_forever(self) -> None:
        """Measure forever. Must run in the loop that is measured."""
        while True:
            self._expected_at = self._clock() + TICK_S
            await asyncio.sleep(TICK_S)
            self.beat()

    def beat(self) -> None:
        """Record how late this beat is."""
        now = self._clock()
        if now - self._window_at >= WINDOW_S:
            self._worst_before_s, self._worst_s, self._window_at = self._worst_s, 0.0, now
        self._worst_s = max(self._worst_s, now - self._expected_at)

    @property
    def silent_s(self) -> float:
        """How long the loop has been blocked by now; 0 if it is on time."""
        return max(self._clock() - self._expected_at, 0.0)

    @property
    def lag_s(self) -> float:
        """The longest recent time for which the loop was blocked."""
        return max(self._worst_s, self._worst_before_s, self.silent_s)
