"""The dependencies that all runs of a worker share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx

from gateway.base.secrets import Secret
from gateway.config.registry import Registry
from gateway.config.routes import Config
from gateway.ledger.connection import Pool
from gateway.ledger.encryption import EncryptionKeys
from gateway.ledger.sessions import Sessions
from gateway.ledger.statistics import MinuteStats
from gateway.worker.metrics import WorkerMetrics

if TYPE_CHECKING:  # opentelemetry, which is an extra
    from gateway.telemetry.spans import Traces


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Connections, clients, statistics and callbacks of a worker."""

    work: Sessions
    """Connections for `ctx.db` only."""
    ledger: Pool
    """Connections for deliveries that are not settled in `ctx.db`, and for `ctx.once`."""
    http: httpx.AsyncClient
    """The client for all requests of handlers, those to Stripe included."""
    patience: timedelta
    """How long to wait for the result of a commit before its connection is closed."""
    config: Config
    registry: Registry
    """The subscriptions, to find the handlers of published jobs."""
    encryption: EncryptionKeys
    """The keys of encrypted routes."""
    api_keys: Mapping[str, Secret] = field(default_factory=dict)
    """API keys for `ctx.stripe`, by the name of the route."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """The values that `@resource` functions have yielded, by name."""
    stats: MinuteStats = field(default_factory=MinuteStats)
    """Statistics of the runs."""
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    """Prometheus metrics of the runs."""
    traces: "Traces | None" = None
    on_retry: Callable[[timedelta], None]
    """Called with the delay when a delivery of this worker is due again later."""
    on_published: Callable[[Iterable[int]], None]
    """Called with the ids of deliveries that were committed in the transaction of another one."""
