"""The number of connections to Postgres that a process opens at most, and the server's limit."""

from dataclasses import dataclass
from typing import Final

import structlog

from gateway.config.settings import Settings
from gateway.ledger.claims import FLUSHERS
from gateway.ledger.connection import QUERIES, Connection
from gateway.ledger.servers import is_pooled

LEASE_CONNECTIONS: Final = 2
LEDGER_CONNECTIONS: Final = 4
OFFICE_CONNECTIONS: Final = 4
"""A limit for operators' requests, so that claims still get connections."""
JOB_CONNECTIONS: Final = 2
ISOLATED_POOL: Final = 2
"""The size of each pool in the process in which a worker runs suspects, one at a time."""
ISOLATED_CONNECTIONS: Final = (
    1 + 2 * ISOLATED_POOL
)  # of its handler, its leases and its settlements
RECONCILING: Final = 2 + FLUSHERS
"""The connections of a worker's reconciliation, of which it runs one at a time: the lock of the
route, its own work, its claims."""

MOMENTARY: Final = 4
"""Short-lived connections: one each for readiness, figures, rejected requests and a reload."""

log = structlog.get_logger("gateway.ledger")

SERVE_CONNECTIONS: Final = (
    2 * FLUSHERS  # of webhooks, and of jobs
    + OFFICE_CONNECTIONS
    + JOB_CONNECTIONS
    + 2  # statistics, and alerts
    + MOMENTARY
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRoom:
    """The connection limit of the server, and its use."""

    most: int
    by: str
    """The setting that imposes the limit."""
    in_use: int

    @property
    def free(self) -> int:
        return max(self.most - self.in_use, 0)


def handler_connections(settings: Settings) -> int:
    """Return the number of connections for `ctx.db`: one per slot, or fewer by a setting."""
    return min(settings.handler_connections or settings.concurrency, settings.concurrency)


def worker_connections(settings: Settings) -> int:
    """Return the maximum number of connections of one worker."""
    beside = LEASE_CONNECTIONS + LEDGER_CONNECTIONS + RECONCILING + ISOLATED_CONNECTIONS
    return handler_connections(settings) + beside + 1  # for figures, short-lived


async def read_room(connection: Connection) -> ConnectionRoom | None:
    """Return the connection limit of this role.

    None through a pooler, because the pooler's limits apply.
    """
    if is_pooled(connection):
        return None
    [row] = await connection.fetch(QUERIES["read_limits"])
    return ConnectionRoom(most=row["most"], by=row["by"], in_use=row["in_use"])


async def warn_of_shortage(connection: Connection, needed: int) -> None:
    """Log a warning when a process starts with too few free connections.

    It starts all the same, because other processes may be about to end.
    """
    if shortage := find_shortage(await read_room(connection), needed):
        log.warning("connections_scarce", reason=shortage)


def find_shortage(room: ConnectionRoom | None, needed: int) -> str | None:
    """Return why a process may not get its connections, or None if it does or is unknown."""
    if room is None or needed <= room.free:
        return None
    return (
        f"it opens up to {needed} connections, and {room.free} are free: {room.most} are allowed"
        f" ({room.by}), {room.in_use} in use"
    )
