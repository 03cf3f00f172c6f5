"""The metrics that `serve` and `worker` have in common."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from importlib.metadata import version
from typing import Final, Literal, get_args

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.base.errors import StorageUnavailable
from gateway.base.names import NO_NAMES, Names
from gateway.ledger.connection import TROUBLE, Pool, close_quietly, connect, describe
from gateway.ledger.health import MOST_HANDLERS, LedgerHealth, read_health
from gateway.ledger.migrate import read_migrations
from gateway.telemetry.metrics import CachedQuestion, LoopMonitor, MetricRegistry, Samples, each

READ_WITHIN_S: Final = 4.0
KNOWN_FOR_S: Final = 60.0
"""An older reading is not shown: its absence is more informative."""

PER_HANDLER: Final = ("route", "handler")
log = structlog.get_logger("gateway.metrics")


class LedgerGauges(Collector):
    """Collect gauges from the ledger. A reading opens one connection and closes it again."""

    def __init__(
        self, url: str, *, lately: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = url
        self._lately = lately
        self._clock = clock
        self._health: LedgerHealth | None = None
        self._read_at = clock() - KNOWN_FOR_S
        self._is_up = False

    async def read(self) -> None:
        """Read the health of the ledger.

        If the ledger does not respond, the previous reading stays valid for a while.
        """
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                health = await self._read_once()
        except (StorageUnavailable, *TROUBLE) as error:
            if self._is_up:
                log.warning("ledger_health_not_read", error=describe(error))
            self._is_up = False
        else:
            self._health, self._read_at, self._is_up = health, self._clock(), True

    async def _read_once(self) -> LedgerHealth:
        connection = await connect(self._url, name="gateway metrics")
        try:
            return await read_health(connection, self._lately)
        finally:
            await close_quietly(connection)

    def collect(self) -> Iterable[Metric]:
        age_s = self._clock() - self._read_at
        known = self._health if age_s < KNOWN_FOR_S else None
        yield GaugeMetricFamily(
            "gateway_ledger_up", "Whether the ledger answered.", float(self._is_up)
        )
        for name, help, labels, read in GAUGES:
            family = GaugeMetricFamily(name, help, labels=labels)
            for values, value in read(known) if known else ():
                family.add_metric(values, value)
            yield family
        age = GaugeMetricFamily(
            "gateway_ledger_age_seconds", "Age of the last reading of the ledger."
        )
        if known:
            age.add_metric((), age_s)
        yield age


def _backlog(health: LedgerHealth) -> Samples:
    for key, backlog in health.backlogs.items():
        for state in ("due", "later", "held"):
            yield (*key, state), getattr(backlog, state)


def _oldest(health: LedgerHealth) -> Samples:
    for key, backlog in health.backlogs.items():
        since = backlog.oldest_due_at or health.at
        yield key, (health.at - since).total_seconds()


def _count_backlogs(name: str) -> Callable[[LedgerHealth], Samples]:
    """Return a function that reads one count of each handler's backlog."""
    return lambda health: ((key, getattr(found, name)) for key, found in health.backlogs.items())


def _unknown_effects(health: LedgerHealth) -> Samples:
    for key in {**health.backlogs, **health.unknown_effects}:
        yield key, health.unknown_effects.get(key, 0)


def _paused(health: LedgerHealth) -> Samples:
    """For a paused route the handler is empty."""
    return [((pause.route, pause.handler or ""), 1) for pause in health.pauses[:MOST_HANDLERS]]


def _reconcile_failed(health: LedgerHealth) -> Samples:
    for run in health.reconciles:
        yield (run["route"],), float(run["status"] == "failed")


def _value(name: str) -> Callable[[LedgerHealth], Samples]:
    """Return a function that reads one number."""
    return lambda health: [((), getattr(health, name))]


GAUGES: Final[Sequence[tuple[str, str, Sequence[str], Callable[[LedgerHealth], Samples]]]] = (
    (
        "gateway_backlog_deliveries",
        "Deliveries that wait: due, later, or held until it is their turn.",
        (*PER_HANDLER, "state"),
        _backlog,
    ),
    (
        "gateway_backlog_oldest_seconds",
        "For how long the oldest delivery has been due.",
        PER_HANDLER,
        _oldest,
    ),
    (
        "gateway_suspect_deliveries",
        "Deliveries that wait to run alone, since a worker was lost twice while they ran.",
        PER_HANDLER,
        _count_backlogs("suspects"),
    ),
    (
        "gateway_dead_deliveries",
        "Dead letters that stand.",
        PER_HANDLER,
        _count_backlogs("dead"),
    ),
    (
        "gateway_unknown_effects",
        "Outside effects of unknown outcome that wait for a person to resolve them.",
        PER_HANDLER,
        _unknown_effects,
    ),
    (
        "gateway_running_deliveries",
        "Deliveries that run, in any worker.",
        PER_HANDLER,
        lambda health: health.running.items(),
    ),
    (
        "gateway_paused",
        "1 for each handler that is paused, or whole route.",
        PER_HANDLER,
        _paused,
    ),
    (
        "gateway_orphaned",
        "1 for each handler with deliveries that wait, and that no worker has.",
        PER_HANDLER,
        lambda health: ((key, 1) for key in health.backlogs if health.is_orphaned(key)),
    ),
    (
        "gateway_reconcile_gaps",
        "Events that a provider sent and that never came, by what became of them.",
        ("route", "status"),
        lambda health: health.gaps.items(),
    ),
    (
        "gateway_reconcile_failed",
        "Whether the last reconcile failed.",
        ("route",),
        _reconcile_failed,
    ),
    ("gateway_workers", "Workers that live.", (), lambda health: [((), len(health.workers))]),
    (
        "gateway_alerts_unheard",
        "Messages of alerts that did not get through.",
        (),
        _value("unheard"),
    ),
    (
        "gateway_ledger_schema",
        "The version of the ledger's schema.",
        (),
        _value("schema_version"),
    ),
    (
        "gateway_ledger_connections",
        "Connections to the Postgres server.",
        (),
        _value("connections"),
    ),
    (
        "gateway_ledger_max_connections",
        "How many it allows.",
        (),
        _value("max_connections"),
    ),
)
"""Name, help, labels and samples of each gauge of the ledger."""

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
        self.registry = add = MetricRegistry()
        self.names = NO_NAMES
        """Maps identities to the current names of renamed routes and handlers, for labels."""
        ProcessCollector(registry=add)
        add.gauge(
            "gateway_build_info",
            "Which code runs, and for which schema of the ledger it was made.",
            *("version", "schema", "process"),
        ).labels(VERSION, _schema(), kind).set(1)
        self._lag = add.gauge(
            "gateway_event_loop_lag_seconds",
            "The longest that something kept the event loop busy, in the last half minute or so.",
        )
        self._pools: dict[str, Callable[[], tuple[int, int, int]]] = {}
        add.deferred_gauge(
            "gateway_pool_connections",
            "Connections of this process to the ledger.",
            *("pool", "state"),
        ).read = self._connections
        add.deferred_gauge(
            "gateway_pool_max_connections", "How many connections a pool may open.", "pool"
        ).read = lambda: [((name,), read()[2]) for name, read in list(self._pools.items())]
        self._redis_up = add.gauge(
            "gateway_redis_up", "Whether Redis answered when it was last asked."
        )
        self._repairs: dict[str, int] = dict.fromkeys(REPAIRS[kind], 0)
        add.deferred_counter(
            "gateway_repairs",
            "What had to be put right because something went wrong before: near misses, by kind.",
            "kind",
        ).read = lambda: each(self._repairs)
        self.admin_refused = add.counter(
            "gateway_admin_refused",
            "Requests to the Admin API and to /metrics without a right token.",
            "outcome",
            zeros=("NO_TOKEN", "UNAUTHORIZED", "TOO_MANY_REFUSED"),
        )
        self._askings: list[CachedQuestion] = []
        self._text, self._stale_at = b"", 0.0

    def watch_ledger(self, url: str, *, lately: timedelta) -> None:
        """Read the gauges of the ledger on demand. `lately` is as in `read_health`."""
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

    def _connections(self) -> Samples:
        for name, read in list(self._pools.items()):  # a copy: pools may still be added
            in_use, idle, _ = read()
            yield (name, "in_use"), in_use
            yield (name, "idle"), idle


class _Labelled:
    """A registry that shows current names of routes and handlers in key of identities."""

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
