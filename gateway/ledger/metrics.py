"""The metrics that `serve` and `worker` have in common."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import version
from typing import Final, Literal, get_args

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.base.errors import StorageUnavailable
from gateway.base.names import NO_NAMES, Names
from gateway.ledger.connection import TROUBLE, Pool, close_quietly, connect, describe
from gateway.ledger.figures import LedgerCounts, read_figures
from gateway.ledger.migrate import read_migrations
from gateway.telemetry.metrics import CachedQuestion, DeferredCounter, LoopMonitor, each

READ_WITHIN_S: Final = 4.0
KNOWN_FOR_S: Final = 60.0
"""Older figures are not shown: their absence is more informative."""

PER_HANDLER: Final = ("route", "handler")
SINGLE: Final = (
    ("gateway_workers", "Workers that live.", "workers"),
    ("gateway_alerts_unheard", "Messages of alerts that did not get through.", "unheard"),
    ("gateway_ledger_schema", "The version of the ledger's schema.", "schema_version"),
    ("gateway_ledger_connections", "Connections to the Postgres server.", "connections"),
    ("gateway_ledger_max_connections", "How many it allows.", "max_connections"),
)
NOTHING: Final = LedgerCounts(
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
    """Collect gauges from the ledger. A reading opens one connection and closes it again."""

    def __init__(
        self, url: str, *, lately: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = url
        self._lately = lately
        self._clock = clock
        self._figures: LedgerCounts | None = None
        self._read_at = clock() - KNOWN_FOR_S
        self._is_up = False

    async def read(self) -> None:
        """Read the figures.

        If the ledger does not respond, the previous ones stay valid for a while.
        """
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                figures = await self._ask()
        except (StorageUnavailable, *TROUBLE) as error:
            if self._is_up:
                log.warning("figures_not_read", error=describe(error))
            self._is_up = False
        else:
            self._figures, self._read_at, self._is_up = figures, self._clock(), True

    async def _ask(self) -> LedgerCounts:
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


def _of_deliveries(figures: LedgerCounts) -> Iterator[Metric]:
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


def _of_handlers(figures: LedgerCounts) -> Iterator[Metric]:
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


def _of_reconciles(figures: LedgerCounts) -> Iterator[Metric]:
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


VERSION: Final = version("webhook-gateway-server")

RESTS: Final = 9
"""The rendered text is cached for this many times the duration of its rendering.

So rendering takes at most a tenth of the time, however many clients ask. For a client that asks
every second, the text is always new.
"""

Repair = Literal[
    "lease_expired",
    "fenced",
    "wake_up_missed",
    "turn_given",
    "settle_repeated",
    "clock_set_back",
    "spool_adopted",
]


Kind = Literal["serve", "worker"]
REPAIRS: Final[Mapping[Kind, Sequence[Repair]]] = {
    "serve": ("spool_adopted",),
    "worker": tuple(repair for repair in get_args(Repair) if repair != "spool_adopted"),
}
"""Exported as 0 from the start: Prometheus does not see an increase if the first value is 1."""


class ProcessMetrics:
    """Prometheus metrics of one process."""

    def __init__(self, kind: Kind) -> None:
        self.registry = CollectorRegistry()
        self.names = NO_NAMES
        """Maps identities to the current names of renamed routes and handlers, for labels."""
        ProcessCollector(registry=self.registry)
        build = Gauge(
            "gateway_build_info",
            "Which code runs, and for which schema of the ledger it was made.",
            ["version", "schema", "process"],
            registry=self.registry,
        )
        build.labels(VERSION, _schema(), kind).set(1)
        self._lag = Gauge(
            "gateway_event_loop_lag_seconds",
            "The longest that something kept the event loop busy, in the last half minute or so.",
            registry=self.registry,
        )
        self._pools: dict[str, Callable[[], tuple[int, int, int]]] = {}
        connections = DeferredCounter(
            GaugeMetricFamily,
            "gateway_pool_connections",
            "Connections of this process to the ledger.",
            ["pool", "state"],
            self.registry,
        )
        connections.read = self._connections
        most = DeferredCounter(
            GaugeMetricFamily,
            "gateway_pool_max_connections",
            "How many connections a pool may open.",
            ["pool"],
            self.registry,
        )
        most.read = lambda: [((name,), read()[2]) for name, read in list(self._pools.items())]
        self._redis_up = Gauge(
            "gateway_redis_up",
            "Whether Redis answered when it was last asked.",
            registry=self.registry,
        )
        self._repairs: dict[str, int] = dict.fromkeys(REPAIRS[kind], 0)
        repairs = DeferredCounter(
            CounterMetricFamily,
            "gateway_repairs",
            "What had to be put right because something went wrong before: near misses, by kind.",
            ["kind"],
            self.registry,
        )
        repairs.read = lambda: each(self._repairs)
        self.admin_refused = Counter(
            "gateway_admin_refused",
            "Requests to the Admin API and to /metrics without a right token.",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in ("NO_TOKEN", "UNAUTHORIZED", "TOO_MANY_REFUSED"):
            self.admin_refused.labels(outcome)
        self._askings: list[CachedQuestion] = []
        self._text, self._stale_at = b"", 0.0

    def watch_ledger(self, url: str, *, lately: timedelta) -> None:
        """Read the gauges of the ledger on demand. `lately` is as in `read_figures`."""
        gauges = LedgerGauges(url, lately=lately)
        self.registry.register(gauges)
        self._askings.append(CachedQuestion(gauges.read))

    def watch_redis(
        self, is_up: Callable[[], bool], ask: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Export whether Redis is reachable.

        `ask` checks that if nothing else in the process would.
        """
        self._redis_up.set_function(is_up)
        if ask is not None:
            self._askings.append(CachedQuestion(ask))

    def watch_loop(self, pulse: LoopMonitor) -> None:
        """Export the lag of the event loop."""
        self._lag.set_function(lambda: pulse.lag_s)

    def watch_pool(self, name: str, pool: Pool) -> None:
        """Export the use of a connection pool."""
        self._pools[name] = lambda: _use(pool)

    def watch_connections(self, name: str, read: Callable[[], tuple[int, int, int]]) -> None:
        """Export connections in use, idle and allowed, for a pool that is not asyncpg's."""
        self._pools[name] = read

    def repaired(self, kind: Repair, n: int = 1) -> None:
        """Count near misses."""
        self._repairs[kind] += n

    async def show(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        await asyncio.gather(*(asking.refresh() for asking in self._askings))
        began_at = time.monotonic()
        if began_at >= self._stale_at:
            self._text = generate_latest(_Labelled(self.registry, self.names))
            ended_at = time.monotonic()
            self._stale_at = ended_at + (ended_at - began_at) * RESTS
        return self._text

    def _connections(self) -> Iterable[tuple[Sequence[str], float]]:
        for name, read in list(self._pools.items()):  # a copy: pools may still be added
            in_use, idle, _ = read()
            yield (name, "in_use"), in_use
            yield (name, "idle"), idle


class _Labelled:
    """A registry that shows current names of routes and handlers in place of identities."""

    def __init__(self, registry: CollectorRegistry, names: Names) -> None:
        self._registry = registry
        self._names = names

    def collect(self) -> Iterable[Metric]:
        for family in self._registry.collect():
            if self._names and family.name.startswith("gateway_"):  # not what handlers count
                family.samples = [
                    sample._replace(labels=self._names.labelled(sample.labels))
                    for sample in family.samples
                ]
            yield family


@cache
def _schema() -> str:
    return str(read_migrations()[-1].version)


def _use(pool: Pool) -> tuple[int, int, int]:
    idle = pool.get_idle_size()
    return pool.get_size() - idle, idle, pool.get_max_size()
