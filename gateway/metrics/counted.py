"""Counts that are kept as plain numbers, where a counter of Prometheus would cost more."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Family = CounterMetricFamily | GaugeMetricFamily
Samples = Callable[[], Iterable[tuple[Sequence[str], float]]]


class Counted(Collector):
    """Reads them when it is asked."""

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
    """By one label."""
    return [((name,), n) for name, n in list(counts.items())]
