"""How many connections to Postgres a process opens at the most, and how many there are."""

from dataclasses import dataclass
from typing import Final

import structlog

from gateway.ledger.claims import FLUSHERS
from gateway.ledger.connection import Connection
from gateway.ledger.pooler import is_pooled
from gateway.ledger.queries import QUERIES
from gateway.settings import Settings

LEASE_CONNECTIONS: Final = 2
LEDGER_CONNECTIONS: Final = 4
OFFICE_CONNECTIONS: Final = 4
"""However many people look at once, claims find room in Postgres."""
JOB_CONNECTIONS: Final = 2
ISOLATED_POOL: Final = 2
"""Of each pool of the process in which a worker runs suspects, one at a time."""
ISOLATED_CONNECTIONS: Final = (
    1 + 2 * ISOLATED_POOL
)  # of its handler, its leases and its settlements
RECONCILING: Final = 2 + FLUSHERS
"""A run of a worker, which does one at a time: the right to the route, its own work, its claims."""

MOMENTARY: Final = 4
"""Readiness, figures, refused requests, a reload: one connection each, for a moment."""

log = structlog.get_logger("gateway.ledger")

SERVE_CONNECTIONS: Final = (
    2 * FLUSHERS  # of webhooks, and of jobs
    + OFFICE_CONNECTIONS
    + JOB_CONNECTIONS
    + 2  # tallies, and alerts
    + MOMENTARY
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the server allows."""

    most: int
    by: str
    """What says so."""
    in_use: int

    @property
    def free(self) -> int:
        return max(self.most - self.in_use, 0)


def handler_connections(settings: Settings) -> int:
    """For `ctx.db`: one for each slot, unless they are to share fewer."""
    return min(settings.handler_connections or settings.concurrency, settings.concurrency)


def worker_connections(settings: Settings) -> int:
    """One worker opens no more than these."""
    beside = LEASE_CONNECTIONS + LEDGER_CONNECTIONS + RECONCILING + ISOLATED_CONNECTIONS
    return handler_connections(settings) + beside + 1  # for figures, for a moment


async def read_room(connection: Connection) -> Room | None:
    """How many connections this role may have; None through a pooler, whose limits count."""
    if is_pooled(connection):
        return None
    [row] = await connection.fetch(QUERIES["read_limits"])
    return Room(most=row["most"], by=row["by"], in_use=row["in_use"])


async def warn_of_shortage(connection: Connection, needed: int) -> None:
    """In the log, when a process starts. It starts all the same: others may be about to end."""
    if shortage := find_shortage(await read_room(connection), needed):
        log.warning("connections_scarce", reason=shortage)


def find_shortage(room: Room | None, needed: int) -> str | None:
    """Why a process may not get its connections; None where it does, or where nobody knows."""
    if room is None or needed <= room.free:
        return None
    return (
        f"it opens up to {needed} connections, and {room.free} are free: {room.most} are allowed"
        f" ({room.by}), {room.in_use} in use"
    )
