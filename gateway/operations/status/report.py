"""The fields of the health snapshot."""

from datetime import datetime
from typing import Literal

from typing_extensions import TypedDict

from gateway.ledger.alerts import AlertRow
from gateway.ledger.bulk import BulkOperation
from gateway.operations.encryption import KeyState


class Found(TypedDict):
    """A problem or a warning, with advice."""

    level: Literal["problem", "warning"]
    text: str
    advice: str


class Attention(Found):
    """A problem or a warning, with the console page about it."""

    see: str | None
    """The console page: the part of its path after `/console/`."""


class PostgresState(TypedDict):
    """The state of the Postgres server."""

    reachable: bool
    error: str | None
    schema_version: int | None
    version: str | None
    size_bytes: int | None
    """Size of the gateway's own tables."""
    connections: int | None
    max_connections: int | None


class RedisState(TypedDict):
    """The state of the Redis server."""

    reachable: bool
    error: str | None
    version: str | None
    memory_bytes: int | None
    jobs: int | None
    """Number of wake-ups in the queue."""


class SpoolState(TypedDict):
    """The spool of one machine."""

    host: str
    """Name of the machine that answered."""
    events: int
    bytes: int
    oldest_at: datetime | None
    unreadable: list[str]
    keys: dict[str, int]
    """Number of encrypted events by key."""


class RequestCounts(TypedDict):
    """Counts of requests by outcome."""

    accepted: int
    duplicate: int
    ignored: int
    refused: int


class SecretState(TypedDict):
    """A secret or token of a route, without its value."""

    secret: str
    """The reference to the secret."""
    expires_at: datetime | None
    expired: bool
    first_used_at: datetime | None
    last_used_at: datetime | None
    """When it last verified a request, in any process. None if it never did, as far as known."""
    uses: int


class RouteState(TypedDict):
    """The requests of a route."""

    route: str
    last_hour: int
    """Number of accepted events."""
    last_event_at: datetime | None
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


class HandlerState(TypedDict):
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


class PauseState(TypedDict):
    """A pause of a route or a handler."""

    route: str
    handler: str | None
    """None if the whole route is paused."""
    actor: str
    reason: str | None
    since: datetime


class WorkerState(TypedDict):
    """A worker that is alive."""

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
    """The last reload of a serve process, within the last days."""

    host: str
    pid: int
    at: datetime
    outcome: Literal["done", "refused"]
    error: str | None


class RejectedState(TypedDict):
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


class StatusReport(TypedDict):
    """The health snapshot."""

    at: datetime
    counts_lag_s: float
    """Maximum lag of the counts of requests and runs.

    It assumes that all processes have the GATEWAY_SWEEP of the one that answers.
    """
    attention: list[Attention]
    postgres: PostgresState
    redis: RedisState
    spool: SpoolState
    routes: list[RouteState]
    alerts: list[AlertRow]
    """Firing alerts, with the destinations that were notified."""
    pauses: list[PauseState]
    handlers: list[HandlerState]
    workers: list[WorkerState]
    reconciles: list[ReconcileState]
    reloads: list[ReloadState]
    rejected: list[RejectedState]
    bulk: list[BulkOperation]
    keys: list[KeyState]
    """The encryption keys, with the number of rows under each."""
