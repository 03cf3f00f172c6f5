"""What `serve` counts."""

from prometheus_client import CollectorRegistry, Counter, Histogram

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """Prometheus metrics of one serve process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "gateway_requests",
            "Webhook requests answered, by outcome: accepted, duplicate, ignored or an error code.",
            ["route", "outcome"],
            registry=self.registry,
        )
        self.conflicts = Counter(
            "gateway_conflicts",
            "Duplicates whose body differs from the one that was claimed first.",
            ["route"],
            registry=self.registry,
        )
        self.flagged = Counter(
            "gateway_flagged",
            "Events accepted although the same bytes came before under another id.",
            ["route"],
            registry=self.registry,
        )
        self.acknowledge = Histogram(
            "gateway_acknowledge_seconds",
            "From the last body byte to the answer, for verified requests.",
            ["route"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )


class Outcomes:
    """Counts the requests of one route; the counter of each outcome is looked up once."""

    def __init__(self, requests: Counter, route: str) -> None:
        self._requests = requests
        self._route = route
        self._counters: dict[str, Counter] = {}

    def __call__(self, outcome: str) -> None:
        counter = self._counters.get(outcome)
        if counter is None:
            counter = self._counters[outcome] = self._requests.labels(self._route, outcome)
        counter.inc()
