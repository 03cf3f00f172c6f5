"""The fields of the health snapshot: one reading of the whole system."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

from gateway.ledger.alerts import AlertRow
from gateway.ledger.bulk import BulkOperation
from gateway.ledger.health import WorkerState
from gateway.ledger.pauses import Pause
from gateway.operations.encryption import KeyState

IDLE: Final = timedelta(days=3)
"""How long a sender may still retry requests signed with the old secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLine:
    """A problem or a warning, with advice."""

    level: Literal["problem", "warning"]
    text: str
    advice: str
    see: str | None = None
    """The console page: the part of its path after `/console/`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresState:
    """The state of the Postgres server."""

    reachable: bool
    error: str | None = None
    schema_version: int | None = None
    version: str | None = None
    size_bytes: int | None = None
    """Size of the gateway's own tables."""
    connections: int | None = None
    max_connections: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisState:
    """The state of the Redis server."""

    reachable: bool
    error: str | None = None
    version: str | None = None
    memory_bytes: int | None = None
    jobs: int | None = None
    """Number of wake-ups in the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolState:
    """The spool of one machine."""

    host: str
    """Name of the machine that answered."""
    events: int
    bytes: int
    oldest_at: datetime | None
    unreadable: list[str]
    keys: dict[str, int]
    """Number of encrypted events by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Counts of requests by outcome."""

    accepted: int
    duplicate: int
    ignored: int
    refused: int

    @property
    def total(self) -> int:
        return self.accepted + self.duplicate + self.ignored + self.refused


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretState:
    """A secret or token of a route, without its value."""

    secret: str
    """The reference to the secret."""
    expires_at: datetime | None
    expired: bool
    first_used_at: datetime | None = None
    last_used_at: datetime | None = None
    """When it last verified a request, in any process. None if it never did, as far as known."""
    uses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteState:
    """The requests of a route."""

    route: str
    last_hour: int
    """Number of accepted events."""
    last_event_at: datetime | None
    last_refused_at: datetime | None
    last_refused_as: str | None
    """Code of the response to the last request that was refused."""
    minutes: RequestCounts
    """Requests of the last five minutes."""
    hour: RequestCounts
    refused_as: dict[str, int]
    """Counts by the code of the response, in the last five minutes."""
    shed: int
    """Requests that were answered 503 because of overload, in the last hour."""
    rejected_items: int
    """Items of accepted batches that were rejected and wait to be released."""
    retries: bool | None
    """Whether the sender retries after a 503. None if the route is not configured."""
    p50_ms: float | None
    """Time from the last byte of the request to the response, in the last hour."""
    p99_ms: float | None
    secrets: list[SecretState]
    """In the order of the file. Empty if the file cannot be read."""

    @property
    def valid_secrets(self) -> list[SecretState]:
        return [secret for secret in self.secrets if not secret.expired]

    @property
    def has_rotation(self) -> bool:
        """Whether the secrets need their own report beside the route's last event."""
        return len(self.secrets) > 1 or any(secret.expires_at for secret in self.secrets)

    @property
    def never_used(self) -> list[SecretState]:
        """Valid secrets that never verified a request, if another secret of the route did."""
        if not any(secret.last_used_at for secret in self.secrets):
            return []
        return [secret for secret in self.valid_secrets if secret.last_used_at is None]

    def can_go(self, secret: SecretState, now: datetime) -> bool:
        """Whether the secret was unused for days, while another one was used since."""
        used_at = secret.last_used_at
        if used_at is None or now - used_at < IDLE:
            return False
        return any(other.last_used_at and other.last_used_at > used_at for other in self.secrets)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerState:
    """The deliveries of a handler."""

    route: str
    handler: str
    pending: int
    oldest_due_at: datetime | None
    waiting_turn: int
    suspects: int
    """Pending deliveries that run alone, because a worker was lost twice while they ran."""
    running: int
    dead: int
    dead_lately: int
    """In the last hour."""
    unknown_effects: int
    """Effects of unknown outcome, which have to be resolved by a person."""
    capped: list[str]
    """The states whose count stopped at its limit."""
    blocked_keys: int
    orphaned: bool
    paused: bool
    runs: int
    """Runs of the last hour that ended in success or failure."""
    failed: int
    retried: int
    """The failed runs that are retried and are not dead letters."""
    success: float | None
    """The share of runs that did not fail."""
    p50_ms: float | None
    p99_ms: float | None
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileState:
    """The last reconcile of a route."""

    route: str
    status: str
    started_at: datetime
    finished_at: datetime | None
    missing: int
    recovered: int
    unrecoverable: int
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadState:
    """The last reload of a serve process, within the last days."""

    host: str
    pid: int
    at: datetime
    outcome: Literal["done", "refused"]
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedState:
    """Requests of a route that were rejected for the same cause in the last hour."""

    route: str
    """Empty if no route has the path."""
    code: str
    cause: str
    detail: str
    refused: int
    """Number of rejected requests with this code, whatever the cause.

    Most of them are not stored.
    """
    kept: int
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSnapshot:
    """The whole system at one moment."""

    at: datetime
    counts_lag_s: float
    """Maximum lag of the counts of requests and runs.

    It assumes that all processes have the GATEWAY_SWEEP of the one that answers.
    """
    attention: list[AttentionLine] = field(default_factory=list)
    postgres: PostgresState
    redis: RedisState
    spool: SpoolState
    routes: list[RouteState]
    alerts: list[AlertRow] = field(default_factory=list)
    """Firing alerts, with the destinations that were notified."""
    pauses: list[Pause] = field(default_factory=list)
    handlers: list[HandlerState] = field(default_factory=list)
    workers: list[WorkerState] = field(default_factory=list)
    reconciles: list[ReconcileState] = field(default_factory=list)
    reloads: list[ReloadState] = field(default_factory=list)
    rejected: list[RejectedState] = field(default_factory=list)
    bulk: list[BulkOperation] = field(default_factory=list)
    keys: list[KeyState] = field(default_factory=list)
    """The encryption keys, with the number of rows under each."""
