"""What every run of a worker shares."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx

from gateway.ledger.connection import Pool
from gateway.ledger.sealed import Vault
from gateway.ledger.sessions import Sessions
from gateway.ledger.tallies import Tallies
from gateway.metrics.worker import WorkerMetrics
from gateway.registry import Registry
from gateway.routes import Config
from gateway.secrets import Secret

if TYPE_CHECKING:  # opentelemetry, which is an extra
    from gateway.traces.spans import Traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """Connections, clients, and whom to tell."""

    work: Sessions
    """Connections for `ctx.db` and for nothing else."""
    ledger: Pool
    """Connections for settling what `ctx.db` did not, and for `ctx.once`."""
    http: httpx.AsyncClient
    """Every request of the handlers' goes through it, those to Stripe included."""
    patience: timedelta
    """How long a commit may go without an answer before its connection is given up."""
    config: Config
    registry: Registry
    """Who takes the jobs that handlers publish."""
    vault: Vault
    """The keys of encrypted routes."""
    api_keys: Mapping[str, Secret] = field(default_factory=dict)
    """By the name of the route, for `ctx.stripe`."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """What `@resource` functions have yielded, by name."""
    tallies: Tallies = field(default_factory=Tallies)
    """Where runs are counted."""
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    """Where they are counted for Prometheus."""
    traces: "Traces | None" = None
    on_retry: Callable[[timedelta], None]
    """Told when a delivery of ours falls due again."""
    on_published: Callable[[Iterable[int]], None]
    """Told which deliveries were committed along with one of ours."""
