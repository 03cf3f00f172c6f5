"""The metrics of `serve`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sized
from contextlib import asynccontextmanager
from typing import Final

from gateway.ledger.claims import Claimer
from gateway.ledger.metrics import ProcessMetrics
from gateway.ledger.reloads import SecretUses
from gateway.receive.spool.spool import Spool
from gateway.telemetry.metrics import LoopMonitor, each

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
EXPECTED: Final = (
    *("accepted", "duplicate", "ignored", "BAD_SIGNATURE", "STALE_TIMESTAMP", "REPEATED_BODY"),
    *("BAD_PAYLOAD", "TOO_LARGE", "RATE_LIMITED", "ADDRESS_REFUSED", "TOO_MANY_REFUSED"),
    *("TIMEOUT", "SHED", "UNAVAILABLE"),
)
"""Outcomes that are exported as 0 from the start. Others appear when they occur."""


class Metrics(ProcessMetrics):
    """Prometheus metrics of one serve process."""

    def __init__(self) -> None:
        super().__init__("serve")
        add = self.registry
        self.requests = add.counter(
            "gateway_requests",
            "Requests answered, by outcome: accepted, duplicate, ignored or an error code.",
            "route",
            "outcome",
        )
        self.conflicts = add.counter(
            "gateway_conflicts",
            "Duplicates whose body differs from the one that was claimed first.",
            "route",
        )
        self.flagged = add.counter(
            "gateway_flagged",
            "Events accepted although the same bytes came before under another id.",
            "route",
        )
        self.shed = add.counter(
            "gateway_shed",
            "Requests answered 503 because of overload, by whether their sender retries.",
            "route",
            "sender_retries",
        )
        self.unverified = add.counter(
            "gateway_unverified",
            "Events taken in development although their signature was wrong (enforce: false).",
            "route",
        )
        self.rejected = add.counter(
            "gateway_rejected",
            "Refused requests for the ring: kept, left out of too many, or lost with the ledger.",
            "outcome",
            zeros=("kept", "left_out", "lost", "trimmed"),
        )
        self.spooled = add.counter(
            "gateway_spooled",
            "Events acknowledged from the local spool because the ledger did not answer.",
            "route",
        )
        self.spool_events = add.gauge(
            "gateway_spool_events", "Events in the spool that the ledger does not have yet."
        )
        self.spool_bytes = add.gauge(
            "gateway_spool_bytes", "What the files of the spool take on the disk."
        )
        self.spool_oldest = add.gauge(
            "gateway_spool_oldest_seconds", "For how long the oldest event has waited in the spool."
        )
        self.refused_addresses = add.gauge(
            "gateway_refused_addresses",
            "Addresses whose refused requests are counted, webhooks and jobs.",
        )
        self.acknowledge = add.histogram(
            "gateway_acknowledge_seconds",
            "From the last body byte to the answer, for verified requests.",
            "route",
            buckets=BUCKETS_S,
        )
        self.reloads = add.counter(
            "gateway_reloads",
            "Reloads of the secrets (SIGHUP): done, or refused, which leaves the old ones.",
            "outcome",
            zeros=("done", "refused"),
        )
        self._batch = add.histogram(
            "gateway_claim_batch_events",
            "How many events were claimed by one commit.",
            buckets=BATCHES,
        )
        self._claim = add.histogram(
            "gateway_claim_seconds", "How long a commit of claims took.", buckets=BUCKETS_S
        )
        self._claims_repeated = add.counter(
            "gateway_claims_repeated",
            "Commits of claims that had to be tried again, by why.",
            "cause",
            zeros=("contended", "lost", "refused"),
        )
        self._claims_waiting = add.gauge(
            "gateway_claims_waiting", "Requests that wait for their commit."
        )
        self._in_flight = add.gauge(
            "gateway_in_flight_requests",
            "Requests that are being received or answered, or wait in a pipeline.",
        )
        self._in_flight_bytes = add.gauge("gateway_in_flight_bytes", "What their bodies take.")
        self._connections_open = add.gauge("gateway_open_connections", "Connections of senders.")
        self._handoffs = add.deferred_counter(
            "gateway_handoffs",
            "Batches of new deliveries for the queue: sent, or why not.",
            "outcome",
        )
        self._spool_drained = add.deferred_counter(
            "gateway_spool_drained",
            "Events of the spool that were offered to the ledger: claimed, or refused for now.",
            "outcome",
        )
        self._spool_damaged = add.deferred_counter(
            "gateway_spool_damaged",
            "Pieces of the spool that could not be read and were set aside.",
        )
        self._secrets = add.deferred_counter(
            "gateway_secret_used",
            "Requests that a secret verified, by its reference.",
            "route",
            "secret",
        )

    def watch_secrets(self, uses: SecretUses) -> None:
        """Read the number of matches of each secret when the metrics are collected."""
        self._secrets.read = lambda: [((r, secret), n) for r, secret, n in uses.counts()]

    def watch(self, spool: Spool) -> None:
        """Read the gauges of the spool when the metrics are collected."""
        self.spool_events.set_function(lambda: spool.events)
        self.spool_bytes.set_function(lambda: spool.size)
        self.spool_oldest.set_function(lambda: spool.oldest_s)
        self._spool_drained.read = lambda: each(spool.drained)
        self._spool_damaged.read = lambda: [((), spool.damaged)]
        spool.on_adopted = lambda events: self.repaired("spool_adopted", events)

    def watch_claims(self, *claimers: Claimer) -> None:
        """Read the number of waiting claims when the metrics are collected."""
        self._claims_waiting.set_function(lambda: sum(c.waiting for c in claimers))
        most = sum(claimer.connections[1] for claimer in claimers)

        def read() -> tuple[int, int, int]:
            return sum(claimer.connections[0] for claimer in claimers), 0, most

        self.watch_connections("claims", read)

    def watch_requests(
        self, *, requests: Callable[[], int], size: Callable[[], int], connections: Sized
    ) -> None:
        """Read the requests in flight when the metrics are collected."""
        self._in_flight.set_function(requests)
        self._in_flight_bytes.set_function(size)
        self._connections_open.set_function(lambda: len(connections))

    def watch_handoffs(self, counts: Mapping[str, int]) -> None:
        """Read the counts of wake-ups when the metrics are collected."""
        self._handoffs.read = lambda: each(counts)

    def count_refused(self, addresses: Sized) -> None:
        """Read the number of limited addresses on collection, never the addresses themselves."""
        self.refused_addresses.set_function(lambda: len(addresses))

    def claimed(self, events: int, seconds: float) -> None:
        """Record a commit of claims."""
        self._batch.observe(events)
        self._claim.observe(seconds)

    def repeated(self, cause: str) -> None:
        """Count a commit that has to be retried."""
        self._claims_repeated.labels(cause).inc()


@asynccontextmanager
async def pulsing(metrics: Metrics) -> AsyncIterator[None]:
    """Measure the lag of the event loop while the context is active."""
    pulse = LoopMonitor()
    metrics.watch_loop(pulse)
    task = asyncio.create_task(pulse.beat_forever(), name="pulse")
    try:
        yield
    finally:
        task.cancel()
