"""What `serve` counts."""

from collections.abc import Iterable, Sized

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.ledger.secret_uses import SecretUses
from gateway.ledger.tallies import REQUESTS, Tallies
from gateway.spool.spool import Spool

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """Prometheus metrics of one serve process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "gateway_requests",
            "Requests answered, by outcome: accepted, duplicate, ignored or an error code.",
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
        self.unverified = Counter(
            "gateway_unverified",
            "Events taken in development although their signature was wrong (enforce: false).",
            ["route"],
            registry=self.registry,
        )
        self.rejected = Counter(
            "gateway_rejected",
            "Refused requests for the ring: kept, left out of too many, or lost with the ledger.",
            ["outcome"],
            registry=self.registry,
        )
        self.spooled = Counter(
            "gateway_spooled",
            "Events acknowledged from the local spool because the ledger did not answer.",
            ["route"],
            registry=self.registry,
        )
        self.spool_events = Gauge(
            "gateway_spool_events",
            "Events in the spool that the ledger does not have yet.",
            registry=self.registry,
        )
        self.spool_bytes = Gauge(
            "gateway_spool_bytes",
            "What the files of the spool take on the disk.",
            registry=self.registry,
        )
        self.spool_oldest = Gauge(
            "gateway_spool_oldest_seconds",
            "For how long the oldest event has waited in the spool.",
            registry=self.registry,
        )
        self.refused_addresses = Gauge(
            "gateway_refused_addresses",
            "Addresses whose refused requests are counted, webhooks and jobs.",
            registry=self.registry,
        )
        self.admin_refused = Counter(
            "gateway_admin_refused",
            "Requests to the Admin API and to /metrics without a right token.",
            ["outcome"],
            registry=self.registry,
        )
        self.acknowledge = Histogram(
            "gateway_acknowledge_seconds",
            "From the last body byte to the answer, for verified requests.",
            ["route"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )

        self.reloads = Counter(
            "gateway_reloads",
            "Reloads of the secrets (SIGHUP): done, or refused, which leaves the old ones.",
            ["outcome"],
            registry=self.registry,
        )
        self.secrets = _SecretUses(SecretUses())
        self.registry.register(self.secrets)

    def watch_secrets(self, uses: SecretUses) -> None:
        """Reads how often each secret matched when that is asked for."""
        self.secrets.uses = uses

    def watch(self, spool: Spool) -> None:
        """Reads the gauges of the spool when they are asked for."""
        self.spool_events.set_function(lambda: spool.events)
        self.spool_bytes.set_function(lambda: spool.size)
        self.spool_oldest.set_function(lambda: spool.oldest_s)

    def count_refused(self, addresses: Sized) -> None:
        """Reads how many addresses are remembered when it is asked for; never which."""
        self.refused_addresses.set_function(lambda: len(addresses))


class _SecretUses(Collector):
    """Counted elsewhere, at less cost than a counter of Prometheus has."""

    def __init__(self, uses: SecretUses) -> None:
        self.uses = uses

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "gateway_secret_used",
            "Requests that a secret verified, by its reference.",
            labels=["route", "secret"],
        )
        for route, secret, count in self.uses.counts():
            family.add_metric([route, secret], count)
        yield family


class Outcomes:
    """Counts the requests of one route; the counter of each outcome is looked up once."""

    def __init__(self, requests: Counter, tallies: Tallies, route: str) -> None:
        self._requests = requests
        self._tallies = tallies
        self._route = route
        self._counters: dict[str, Counter] = {}

    def __call__(self, outcome: str) -> None:
        counter = self._counters.get(outcome)
        if counter is None:
            counter = self._counters[outcome] = self._requests.labels(self._route, outcome)
        counter.inc()
        self._tallies.add(self._route, REQUESTS, outcome)
