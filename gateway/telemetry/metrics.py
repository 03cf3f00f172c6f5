"""Building blocks of metrics: declarations, cached questions, event loop delay."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
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


Samples = Iterable[tuple[Sequence[str], float]]
"""Values of a metric, each with the values of its labels."""


class DeferredMetric(Collector):
    """A metric whose values are kept elsewhere, and read when it is collected."""

    def __init__(self, make: Callable[[], CounterMetricFamily | GaugeMetricFamily]) -> None:
        self._make = make
        self.read: Callable[[], Samples] = lambda: ()

    def collect(self) -> Iterable[Metric]:
        family = self._make()
        for labels, value in self.read():
            family.add_metric(labels, value)
        yield family


class MetricRegistry(CollectorRegistry):
    """A registry in which one line declares a metric: its name, its help and its labels."""

    def counter(self, name: str, help: str, *labels: str, zeros: Iterable[str] = ()) -> Counter:
        """Add a counter. Export 0 from the start for these values of its only label."""
        counter = Counter(name, help, labels, registry=self)
        for value in zeros:
            counter.labels(value)
        return counter

    def gauge(self, name: str, help: str, *labels: str) -> Gauge:
        return Gauge(name, help, labels, registry=self)

    def histogram(self, name: str, help: str, *labels: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, help, labels, buckets=buckets, registry=self)

    def deferred_counter(self, name: str, help: str, *labels: str) -> DeferredMetric:
        return self._deferred(lambda: CounterMetricFamily(name, help, labels=labels))

    def deferred_gauge(self, name: str, help: str, *labels: str) -> DeferredMetric:
        return self._deferred(lambda: GaugeMetricFamily(name, help, labels=labels))

    def _deferred(
        self, make: Callable[[], CounterMetricFamily | GaugeMetricFamily]
    ) -> DeferredMetric:
        metric = DeferredMetric(make)
        self.register(metric)
        return metric


def each(counts: Mapping[str, int]) -> Samples:
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
