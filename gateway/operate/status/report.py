"""What `gateway status` shows, field by field."""

from datetime import datetime
from typing import Literal

from typing_extensions import TypedDict

from gateway.ledger.alerts import AlertRow
from gateway.operate.keys import KeyState


class Found(TypedDict):
    """Something that a person should look at, and what he can do."""

    level: Literal["problem", "warning"]
    text: str
    advice: str


class Attention(Found):
    """The same, with where it is to be seen."""

    see: str | None
    """The page of the console: what is behind `/console/`."""


class PostgresState(TypedDict):
    """The ledger's server."""

    reachable: bool
    error: str | None
    schema_version: int | None
    version: str | None
    size_bytes: int | None
    """What the gateway's own tables take."""
    connections: int | None
    max_connections: int | None


class RedisState(TypedDict):
    """The queue's server."""

    reachable: bool
    error: str | None
    version: str | None
    memory_bytes: int | None
    jobs: int | None
    """Wake-ups that nobody has taken yet."""


class SpoolState(TypedDict):
    """What waits on the disk of one machine."""

    host: str
    """The machine that was asked."""
    events: int
    bytes: int
    oldest_at: datetime | None
    unreadable: list[str]
    keys: dict[str, int]
    """How many are encrypted under which key."""


class Requests(TypedDict):
    """What became of requests."""

    accepted: int
    duplicate: int
    ignored: int
    refused: int


class SecretState(TypedDict):
    """A secret or token of a route; never the secret itself."""

    secret: str
    """Its reference."""
    expires_at: datetime | None
    expired: bool
    first_used_at: datetime | None
    last_used_at: datetime | None
    """When it last verified a request, in any process; None: never, as far as is known."""
    uses: int


class RouteState(TypedDict):
    """The requests of a route."""

    route: str
    last_hour: int
    """Accepted events."""
    last_event_at: datetime | None
    minutes: Requests
    """Of the last five minutes."""
    hour: Requests
    refused_as: dict[str, int]
    """By the code of the answer, in the last five minutes."""
    shed: int
    """Requests that were answered 503 because of overload, in the last hour."""
    rejected_items: int
    """Items of accepted batches that were rejected and wait to be released."""
    retries: bool | None
    """Whether the sender repeats a request that was answered 503; None if the route is not in the
    configuration."""
    p50_ms: float | None
    """From the last byte to the answer, in the last hour."""
    p99_ms: float | None
    secrets: list[SecretState]
    """In the order of the file; none where the file cannot be read."""


class HandlerState(TypedDict):
    """The deliveries of a handler."""

    route: str
    handler: str
    pending: int
    oldest_due_at: datetime | None
    waiting_turn: int
    suspects: int
    """Of those that wait: they run alone, since a worker was lost twice while they ran."""
    running: int
    dead: int
    dead_lately: int
    """Of the last hour."""
    unknown_effects: int
    """Outside effects of unknown outcome, which a person has to resolve."""
    capped: list[str]
    """Of which state there are more, which were not counted."""
    blocked_keys: int
    orphaned: bool
    paused: bool
    runs: int
    """Of the last hour: those that ended in success or failure."""
    failed: int
    retried: int
    """Of those that failed: the ones that are tried again, and did not die."""
    success: float | None
    """The share of them that did not fail."""
    p50_ms: float | None
    p99_ms: float | None
    note: str | None


class PauseState(TypedDict):
    """What is not run for now."""

    route: str
    handler: str | None
    """None: all of the route."""
    actor: str
    reason: str | None
    since: datetime


class WorkerState(TypedDict):
    """A worker that lives."""

    id: str
    host: str
    pid: int
    version: str | None
    handlers: list[str]
    started_at: datetime
    seen_at: datetime


class ReconcileState(TypedDict):
    """The last reconcile of a route."""

    route: str
    status: str
    started_at: datetime
    finished_at: datetime | None
    missing: int
    recovered: int
    unrecoverable: int
    error: str | None


class ReloadState(TypedDict):
    """The last reload of a serve process, in the last days."""

    host: str
    pid: int
    at: datetime
    outcome: Literal["done", "refused"]
    error: str | None


class OrderState(TypedDict):
    """An order for everything that matches, which has not come to its end."""

    id: int
    action: str
    actor: str
    total: int
    moved: int
    stepped_at: datetime
    is_idle: bool
    """Nobody seems to be at it."""


class RejectedState(TypedDict):
    """Requests of a route that were refused for the same cause, in the last hour."""

    route: str
    """Empty where no route has the path."""
    code: str
    cause: str
    detail: str
    refused: int
    """With this code, whatever the cause: of most, nothing is kept."""
    kept: int
    last_at: datetime


class Status(TypedDict):
    """All of it."""

    at: datetime
    counts_lag_s: float
    """By how much the counts of requests and runs lag at most, if all processes have the
    GATEWAY_SWEEP of the one that answers."""
    attention: list[Attention]
    postgres: PostgresState
    redis: RedisState
    spool: SpoolState
    routes: list[RouteState]
    alerts: list[AlertRow]
    """What stands, and who was told of it."""
    pauses: list[PauseState]
    handlers: list[HandlerState]
    workers: list[WorkerState]
    reconciles: list[ReconcileState]
    reloads: list[ReloadState]
    rejected: list[RejectedState]
    orders: list[OrderState]
    keys: list[KeyState]
    """Under which keys encrypted routes are stored."""
