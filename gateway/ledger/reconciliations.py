"""Runs that ask a provider what it sent: one at a time per route, and resumed after a crash."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import asyncpg

from gateway.errors import CommandFailed, NotFound
from gateway.ledger.connection import Connection, Executor, Pooled
from gateway.ledger.queries import QUERIES

SCHEDULE: Final = "schedule"
"""The actor of runs that the route's own `every` ordered."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a new run is to look at."""

    route: str
    actor: str
    since: datetime
    until: datetime
    note: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """How the scheduled runs of a route stand."""

    last_id: int | None
    last_status: str | None
    finished_at: datetime | None
    good_until: datetime | None
    """Until when the last good one looked."""
    first_since: datetime | None
    """From when on the first one was to look, good or not."""


@asynccontextmanager
async def reconciling(connection: Connection | Pooled, route: str) -> AsyncIterator[None]:
    """The right to reconcile a route: a transaction that holds it, or ends with its connection.

    Raises CommandFailed.
    """
    async with connection.transaction():
        if not await connection.fetchval(QUERIES["take_reconciliation"], route):
            raise CommandFailed(f"a reconciliation of route {route!r} is under way")
        yield


async def keep_right(connection: Connection) -> None:
    """A sign of life of who is `reconciling`: an idle connection is forgotten on the way, and with
    it the right. Raises TROUBLE where it is."""
    await connection.execute("select 1")


async def begin(connection: Executor, order: Order) -> int:
    """A new run's id. Raises CommandFailed where another one of the route runs."""
    try:
        id: int = await connection.fetchval(
            QUERIES["begin_reconciliation"],
            order.route,
            order.actor,
            order.since,
            order.until,
            order.note,
            order.dry_run,
        )
    except asyncpg.UniqueViolationError:
        raise CommandFailed(f"a reconciliation of route {order.route!r} is under way") from None
    return id


async def resume(connection: Executor, id: int, floor: datetime) -> None:
    """Goes on with a run, but not with what is older than this by now. Raises CommandFailed."""
    try:
        found = await connection.fetchval(QUERIES["resume_reconciliation"], id, floor)
    except asyncpg.UniqueViolationError:
        raise CommandFailed("another reconciliation of the route is under way") from None
    if found is None:
        raise CommandFailed(f"reconciliation {id} has come to its end: there is nothing to resume")


async def start(connection: Executor, id: int) -> None:
    """Takes a run up. Raises CommandFailed where it was stopped before."""
    if await connection.fetchval(QUERIES["start_reconciliation"], id) is None:
        raise CommandFailed(f"reconciliation {id} was stopped by another order")


async def abandon(connection: Executor, route: str) -> None:
    """Marks the run of a process that is gone. Only for who is `reconciling` the route."""
    await connection.fetch(QUERIES["abandon_reconciliations"], route)


async def step(
    connection: Executor, id: int, *, phase: str, cursor: str | None, listed: int = 0
) -> None:
    """Says how far a run has come. Raises CommandFailed where it is somebody else's by now."""
    row = await connection.fetchval(QUERIES["step_reconciliation"], id, phase, cursor, listed)
    if row is None:
        raise CommandFailed(f"reconciliation {id} was stopped by another order")


async def count_up(connection: Executor, id: int, missing: int | None = None) -> None:
    """Brings a run's figures up to its gaps; a dry run leaves none, and says how many it saw."""
    await connection.fetchval(QUERIES["count_reconciliation"], id, missing)


async def end(connection: Executor, id: int, status: str, error: str | None = None) -> None:
    """Says how a run ended."""
    await connection.fetchval(QUERIES["end_reconciliation"], id, status, error)


async def find_reconciliation(connection: Executor, id: int) -> Row:
    """One run. Raises NotFound."""
    row = await connection.fetchrow(QUERIES["find_reconciliation"], id)
    if row is None:
        raise NotFound(f"there is no reconciliation {id}")
    return dict(row)


async def list_reconciliations(
    connection: Executor, route: str | None, after: int | None, limit: int
) -> list[Row]:
    """Runs, newest first, from behind a mark."""
    rows = await connection.fetch(QUERIES["list_reconciliations"], route, limit, after)
    return [dict(row) for row in rows]


async def last_runs(connection: Executor) -> list[Row]:
    """The newest run of each route that has had one, dry runs aside."""
    return [dict(row) for row in await connection.fetch(QUERIES["last_reconciliations"])]


async def find_resumable(connection: Executor, route: str) -> int | None:
    """The newest run of the route, where it has not come to its end."""
    id: int | None = await connection.fetchval(QUERIES["find_resumable"], route)
    return id


async def find_scheduled(connection: Executor, route: str) -> Scheduled:
    """How the scheduled runs of a route stand."""
    [row] = await connection.fetch(QUERIES["last_scheduled"], route)
    return Scheduled(
        last_id=row["id"],
        last_status=row["status"],
        finished_at=row["finished_at"],
        good_until=row["good_until"],
        first_since=row["first_since"],
    )


async def forget_runs(connection: Executor, age: timedelta) -> None:
    """Runs that nobody goes on from, and of long ago."""
    await connection.execute(QUERIES["forget_reconciliations"], age)
