"""The metrics of a worker."""

from collections.abc import Callable, Iterable
from typing import Final, Literal

import structlog
from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.base.model import HandlerKey, Outcome
from gateway.ledger.metrics import ProcessMetrics

FAST_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
RUNS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)

PER_HANDLER: Final = ("route", "handler")

OURS: Final = ("gateway_", "process_", "python_")
"""Prefixes of the gateway's own metrics. A handler's metrics with these prefixes are ignored."""

log = structlog.get_logger("gateway.metrics")

Source = Literal["queue", "ledger", "limited", "turn"]


class HandlersOwn(Collector):
    """The metrics of handlers in the default registry of prometheus_client."""

    def collect(self) -> Iterable[Metric]:
        try:
            found = list(REGISTRY.collect())
        except Exception as error:  # not our code, and no reason to export nothing
            log.warning("handlers_metrics_failed", error=repr(error))
            return
        yield from (family for family in found if not family.name.startswith(OURS))


class WorkerMetrics(ProcessMetrics):
    """Prometheus metrics of one worker process."""

    def __init__(self) -> None:
        super().__init__("worker")
        add = self.registry
        self.registry.register(HandlersOwn())
        self._attempts = add.counter(
            "gateway_attempts", "Runs of deliveries, by how they ended.", *PER_HANDLER, "outcome"
        )
        self._dead = add.counter(
            "gateway_dead_letters", "Deliveries that became dead letters.", *PER_HANDLER
        )
        self._handler = add.histogram(
            "gateway_handler_seconds",
            "How long the handler itself ran, whatever came of it.",
            *PER_HANDLER,
            buckets=RUNS_S,
        )
        self._settle = add.histogram(
            "gateway_settle_seconds",
            "From the end of the handler to the commit that settles its delivery.",
            buckets=FAST_S,
        )
        self._lease = add.histogram(
            "gateway_lease_seconds", "How long the ledger took to lease deliveries.", buckets=FAST_S
        )
        self._batch = add.histogram(
            "gateway_lease_batch_deliveries",
            "How many deliveries were leased at once.",
            buckets=BATCHES,
        )
        self._leased = add.counter(
            "gateway_leased_deliveries",
            "Deliveries leased, by how the worker came to know of them.",
            "source",
        )
        self.heartbeats_missed = add.counter(
            "gateway_heartbeats_missed", "Heartbeats that the ledger did not answer."
        )
        self.published = add.counter("gateway_published", "Jobs that handlers published.", "route")
        self.pruned = add.counter(
            "gateway_pruned", "What retention forgot, in rows; of days, in tables.", "what"
        )
        self.prune_steps = add.counter("gateway_prune_steps", "Steps of retention.")
        self._queue_restarts = add.deferred_counter(
            "gateway_queue_restarts", "How often the listener to Redis had to be started anew."
        )
        self._slots = add.gauge("gateway_worker_slots", "Deliveries that may run at once.")
        self._busy = add.gauge("gateway_worker_busy_slots", "Deliveries that run here.")
        self._outcomes: dict[tuple[str, str, Outcome], Counter] = {}
        self._handlers: dict[HandlerKey, Histogram] = {}
        self._sources: dict[Source, Counter] = {
            source: self._leased.labels(source) for source in ("queue", "ledger", "limited", "turn")
        }

    def expect(self, handlers: Iterable[HandlerKey]) -> None:
        """Export zeros from the start: a first value of 1 is no increase to Prometheus."""
        for key in handlers:
            self._dead.labels(*key)
            for outcome in Outcome:
                self.ended(*key, outcome, n=0)

    def watch_slots(self, slots: int, busy: Callable[[], int]) -> None:
        """Export how many slots are in use."""
        self._slots.set(slots)
        self._busy.set_function(busy)

    def watch_queue(self, is_up: Callable[[], bool], restarts: Callable[[], int]) -> None:
        """Export whether the worker can be woken through Redis."""
        self.watch_redis(is_up)
        self._queue_restarts.read = lambda: [((), restarts())]

    def leased(self, source: Source, deliveries: int) -> None:
        """Count the deliveries that one statement leased."""
        if deliveries:
            self._sources[source].inc(deliveries)

    def lease_took(self, deliveries: int, seconds: float) -> None:
        """Record a lease statement that returned deliveries."""
        self._batch.observe(deliveries)
        self._lease.observe(seconds)

    def ended(
        self, route: str, handler: str, outcome: Outcome, *, n: int = 1, is_dead: bool = False
    ) -> None:
        """Count an attempt.

        The counters are cached, because `labels` takes longer than counting.
        """
        key = (route, handler, outcome)
        counter = self._outcomes.get(key)
        if counter is None:
            counter = self._outcomes[key] = self._attempts.labels(*key)
        counter.inc(n)
        if is_dead:
            self._dead.labels(route, handler).inc(n)

    def took(self, route: str, handler: str, handler_s: float | None, settle_s: float) -> None:
        """Record how long the handler and the settlement took."""
        self._settle.observe(settle_s)
        if handler_s is None:
            return
        histogram = self._handlers.get((route, handler))
        if histogram is None:
            histogram = self._handlers[route, handler] = self._handler.labels(route, handler)
        histogram.observe(handler_s)
