"""What `serve` and `worker` both tell of themselves."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from importlib.metadata import version
from typing import Final, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector

from gateway.ledger.connection import Pool
from gateway.ledger.migrate import read_migrations
from gateway.metrics.asking import Asking
from gateway.metrics.counted import Counted, each
from gateway.metrics.ledger import LedgerGauges
from gateway.metrics.pulse import Pulse

VERSION: Final = version("webhook-gateway-server")

RESTS: Final = 9
"""Times as long as it took to write it, the text stands: however many ask, it takes a tenth of the
time at most. For one who asks every second it is always new."""

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
"""Told from the start, as 0: what is first seen as 1 is no increase to Prometheus."""


class ProcessMetrics:
    """Prometheus metrics of one process."""

    def __init__(self, kind: Kind) -> None:
        self.registry = CollectorRegistry()
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
        connections = Counted(
            GaugeMetricFamily,
            "gateway_pool_connections",
            "Connections of this process to the ledger.",
            ["pool", "state"],
            self.registry,
        )
        connections.read = self._connections
        most = Counted(
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
        repairs = Counted(
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
        self._askings: list[Asking] = []
        self._text, self._stale_at = b"", 0.0

    def watch_ledger(self, url: str, *, lately: timedelta) -> None:
        """Reads the gauges of the ledger when they are asked for; `lately` as in `read_figures`."""
        gauges = LedgerGauges(url, lately=lately)
        self.registry.register(gauges)
        self._askings.append(Asking(gauges.read))

    def watch_redis(
        self, is_up: Callable[[], bool], ask: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Tells whether Redis is there. `ask`: where nobody else would find out."""
        self._redis_up.set_function(is_up)
        if ask is not None:
            self._askings.append(Asking(ask))

    def watch_loop(self, pulse: Pulse) -> None:
        """Tells how busy it is."""
        self._lag.set_function(lambda: pulse.lag_s)

    def watch_pool(self, name: str, pool: Pool) -> None:
        """Tells how much of it is used."""
        self._pools[name] = lambda: _use(pool)

    def watch_connections(self, name: str, read: Callable[[], tuple[int, int, int]]) -> None:
        """In use, idle, and the most there may be, where it is no pool of asyncpg's."""
        self._pools[name] = read

    def repaired(self, kind: Repair, n: int = 1) -> None:
        """Counts near misses."""
        self._repairs[kind] += n

    async def show(self) -> bytes:
        """As Prometheus reads it."""
        await asyncio.gather(*(asking.refresh() for asking in self._askings))
        began_at = time.monotonic()
        if began_at >= self._stale_at:
            self._text = generate_latest(self.registry)
            ended_at = time.monotonic()
            self._stale_at = ended_at + (ended_at - began_at) * RESTS
        return self._text

    def _connections(self) -> Iterable[tuple[Sequence[str], float]]:
        for name, read in list(self._pools.items()):  # the worker may only just be opening them
            in_use, idle, _ = read()
            yield (name, "in_use"), in_use
            yield (name, "idle"), idle


@cache
def _schema() -> str:
    return str(read_migrations()[-1].version)


def _use(pool: Pool) -> tuple[int, int, int]:
    idle = pool.get_idle_size()
    return pool.get_size() - idle, idle, pool.get_max_size()
