"""Gauges of the whole ledger, read by every process that is asked for them, and not too often."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.errors import StorageUnavailable
from gateway.ledger.connection import TROUBLE, close_quietly, connect, describe
from gateway.ledger.figures import Figures, read_figures

READ_WITHIN_S: Final = 4.0
KNOWN_FOR_S: Final = 60.0
"""Older figures are not told: that there are none says more."""

PER_HANDLER: Final = ("route", "handler")
SINGLE: Final = (
    ("gateway_workers", "Workers that live.", "workers"),
    ("gateway_alerts_unheard", "Messages of alerts that did not get through.", "unheard"),
    ("gateway_ledger_schema", "The version of the ledger's schema.", "schema_version"),
    ("gateway_ledger_connections", "Connections to the Postgres server.", "connections"),
    ("gateway_ledger_max_connections", "How many it allows.", "max_connections"),
)
NOTHING: Final = Figures(
    at=datetime.min.replace(tzinfo=UTC),
    unsettled={},
    running={},
    unknown_effects={},
    paused=(),
    workers=0,
    served=frozenset(),
    gaps={},
    reconciles={},
    connections=0,
    max_connections=0,
    schema_version=0,
    unheard=0,
)

log = structlog.get_logger("gateway.metrics")


class LedgerGauges(Collector):
    """Takes one connection for a moment."""

    def __init__(
        self, url: str, *, lately: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = url
        self._lately = lately
        self._clock = clock
        self._figures: Figures | None = None
        self._read_at = clock() - KNOWN_FOR_S
        self._is_up = False

    async def read(self) -> None:
        """Reads them anew; what the ledger does not tell now is known from before, for a while."""
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                figures = await self._ask()
        except (StorageUnavailable, *TROUBLE) as error:
            if self._is_up:
                log.warning("figures_not_read", error=describe(error))
            self._is_up = False
        else:
            self._figures, self._read_at, self._is_up = figures, self._clock(), True

    async def _ask(self) -> Figures:
        connection = await connect(self._url, name="gateway metrics")
        try:
            return await read_figures(connection, self._lately)
        finally:
            await close_quietly(connection)

    def collect(self) -> Iterable[Metric]:
        age_s = self._clock() - self._read_at
        figures = self._figures if age_s < KNOWN_FOR_S else None
        yield _gauge("gateway_ledger_up", "Whether the ledger answered.", float(self._is_up))
        yield _gauge(
            "gateway_ledger_age_seconds",
            "How old the figures of the ledger are.",
            None if figures is None else age_s,
        )
        known = figures or NOTHING
        yield from _of_deliveries(known)
        yield from _of_handlers(known)
        yield from _of_reconciles(known)
        for name, help, field in SINGLE:
            yield _gauge(name, help, None if figures is None else getattr(figures, field))


def _gauge(name: str, help: str, value: float | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help)
    if value is not None:
        family.add_metric((), value)
    return family


def _of_deliveries(figures: Figures) -> Iterator[Metric]:
    backlog = GaugeMetricFamily(
        "gateway_backlog_deliveries",
        "Deliveries that wait: due, later, or held until it is their turn.",
        labels=[*PER_HANDLER, "state"],
    )
    oldest = GaugeMetricFamily(
        "gateway_backlog_oldest_seconds",
        "For how long the oldest delivery has been due.",
        labels=PER_HANDLER,
    )
    dead = GaugeMetricFamily(
        "gateway_dead_deliveries", "Dead letters that stand.", labels=PER_HANDLER
    )
    running = GaugeMetricFamily(
        "gateway_running_deliveries", "Deliveries that run, in any worker.", labels=PER_HANDLER
    )
    suspects = GaugeMetricFamily(
        "gateway_suspect_deliveries",
        "Deliveries that wait to run alone, since a worker was lost twice while they ran.",
        labels=PER_HANDLER,
    )
    unknown = GaugeMetricFamily(
        "gateway_unknown_effects",
        "Outside effects of unknown outcome that wait for a person to resolve them.",
        labels=PER_HANDLER,
    )
    for place, found in figures.unsettled.items():
        suspects.add_metric(place, found.suspects)
        for state, n in (("due", found.due), ("later", found.later), ("held", found.held)):
            backlog.add_metric((*place, state), n)
        since = found.oldest_due_at or figures.at
        oldest.add_metric(place, (figures.at - since).total_seconds())
        dead.add_metric(place, found.dead)
    for place, n in figures.running.items():
        running.add_metric(place, n)
    for place in {**figures.unsettled, **figures.unknown_effects}:
        unknown.add_metric(place, figures.unknown_effects.get(place, 0))
    yield from (backlog, oldest, suspects, dead, unknown, running)


def _of_handlers(figures: Figures) -> Iterator[Metric]:
    paused = GaugeMetricFamily(
        "gateway_paused", "1 for each handler that is paused, or whole route.", labels=PER_HANDLER
    )
    orphaned = GaugeMetricFamily(
        "gateway_orphaned",
        "1 for each handler with deliveries that wait, and that no worker has.",
        labels=PER_HANDLER,
    )
    for place in figures.paused:
        paused.add_metric(place, 1)
    for place, found in figures.unsettled.items() if figures.workers else ():
        if found.due + found.later + found.held and place not in figures.served:
            orphaned.add_metric(place, 1)
    yield from (paused, orphaned)


def _of_reconciles(figures: Figures) -> Iterator[Metric]:
    gaps = GaugeMetricFamily(
        "gateway_reconcile_gaps",
        "Events that a provider sent and that never came, by what became of them.",
        labels=["route", "status"],
    )
    failed = GaugeMetricFamily(
        "gateway_reconcile_failed", "Whether the last reconcile failed.", labels=["route"]
    )
    for where, n in figures.gaps.items():
        gaps.add_metric(where, n)
    for route, status in figures.reconciles.items():
        failed.add_metric((route,), float(status == "failed"))
    yield from (gaps, failed)
