"""Reconciliation runs, which ask a provider for its events.

One runs at a time per route, and is resumed after a crash.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import asyncpg
import orjson

from gateway.base.errors import CommandFailed, NotFound
from gateway.ledger.connection import QUERIES, Connection, Executor, Pooled
from gateway.ledger.walk import delete_all

MOST_REASONS: Final = 20
MOST_SHOWN: Final = 100
BATCH: Final = 1_000

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """An event in a provider's listing that the ledger has not seen."""

    event_id: str
    type: str
    handle: str
    """The id by which the provider can be asked for it."""
    handled_at: datetime
    """The time of its last delivery, or of the event itself."""
    occurred_at: datetime
    is_first: bool = True
    """Whether `occurred_at` is its first delivery, and not a later one."""
    recorded: str | None = None
    """The result of the last delivery, according to the provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A missing event that is to be recovered now."""

    event_id: str
    handle: str


async def find_unseen(
    connection: Executor, route: str, event_ids: Sequence[str], refused_types: Sequence[str]
) -> set[str]:
    """Return the ids that the ledger has neither claimed nor refused as REPEATED_BODY.

    A refusal counts as long as repeats of the type are refused (`refused_types`): under today's
    rule another delivery of a flagged type would be accepted.
    """
    rows = await connection.fetch(
        QUERIES["find_unseen"], route, list(event_ids), list(refused_types)
    )
    return {row["event_id"] for row in rows}


async def note_gaps(
    connection: Executor, route: str, run_id: int, missing: Sequence[Missing], *, again: bool
) -> None:
    """Record missing events, each of them once. With `again`, reopen those that were given up."""
    if missing:
        rows = orjson.dumps([asdict(gap) for gap in missing]).decode()
        await connection.execute(QUERIES["note_gaps"], route, run_id, rows, again)


async def adopt_gaps(connection: Executor, route: str, run_id: int) -> None:
    """Assign the open gaps of earlier runs to this run."""
    await connection.execute(QUERIES["adopt_gaps"], route, run_id)


async def close_gaps(connection: Executor, run_id: int, refused_types: Sequence[str]) -> int:
    """Close the gaps that have arrived. Return how many of the requested ones have not."""
    left: int = await connection.fetchval(QUERIES["close_gaps"], run_id, list(refused_types))
    return left


async def give_up(connection: Executor, route: str, reasons: Mapping[str, str]) -> None:
    """Give up some events, each with the reason why it cannot be recovered."""
    if reasons:
        await connection.execute(
            QUERIES["give_up_gaps"], route, list(reasons), list(reasons.values())
        )


async def give_up_old(
    connection: Executor,
    run_id: int,
    *,
    asks: int,
    patience: timedelta,
    kept_since: datetime,
    known_since: datetime,
) -> None:
    """Give up gaps that were requested too often, or are older than provider or ledger know."""
    await connection.execute(
        QUERIES["give_up_old_gaps"], run_id, asks, patience, kept_since, known_since
    )


async def next_gaps(
    connection: Executor, run_id: int, *, pause: timedelta, until: datetime, limit: int
) -> list[Gap]:
    """Return the gaps that the run has to recover next, oldest first."""
    rows = await connection.fetch(QUERIES["next_gaps"], run_id, pause, until, limit)
    return [Gap(event_id=row["event_id"], handle=row["handle"]) for row in rows]


async def ask_gap(
    connection: Executor, route: str, run_id: int, event_id: str, refused_types: Sequence[str]
) -> bool:
    """Record a request for the event. Return False if it has arrived in the meantime."""
    asks = await connection.fetchval(
        QUERIES["ask_gap"], route, event_id, run_id, list(refused_types)
    )
    return asks is not None


async def explain_gap(
    connection: Executor, route: str, event_id: str, reason: str, *, was_asked: bool
) -> None:
    """Record why an event was not recovered this time.

    `was_asked`: whether the provider may have received the request.
    """
    await connection.execute(QUERIES["explain_gap"], route, event_id, reason, was_asked)


async def count_reasons(connection: Executor, run_id: int) -> list[Row]:
    """Count the gaps that the run could not recover, by reason."""
    return [dict(r) for r in await connection.fetch(QUERIES["count_reasons"], run_id, MOST_REASONS)]


async def list_gaps(connection: Executor, run_id: int) -> list[Row]:
    """Return gaps that the run could not recover, oldest first, up to MOST_SHOWN."""
    return [dict(r) for r in await connection.fetch(QUERIES["list_gaps"], run_id, MOST_SHOWN)]


async def forget_gaps(connection: Executor, age: timedelta) -> None:
    """Delete gaps that were closed long ago."""
    await delete_all(connection, "forget_gaps", age, BATCH)


SCHEDULE: Final = "schedule"
"""The actor of runs that the route's own `every` started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileRequest:
    """The parameters of a new run."""

    route: str
    actor: str
    since: datetime
    until: datetime
    note: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """The state of the scheduled runs of a route."""

    last_id: int | None
    last_status: str | None
    finished_at: datetime | None
    good_until: datetime | None
    """The end of the time span of the last successful run."""
    first_since: datetime | None
    """The start of the time span of the first run, successful or not."""


@asynccontextmanager
async def reconciling(connection: Connection | Pooled, route: str) -> AsyncIterator[None]:
    """Hold the lock to reconcile a route, in a transaction that ends with the connection.

    Raises CommandFailed if another process holds it.
    """
    async with connection.transaction():
        if not await connection.fetchval(QUERIES["take_reconciliation"], route):
            raise CommandFailed(f"a reconciliation of route {route!r} is under way")
        yield


async def keep_right(connection: Connection) -> None:
    """Keep the lock of `reconciling` alive: firewalls drop an idle connection, and the lock with
    it.

    Raises TROUBLE if the connection is gone.
    """
    await connection.execute("select 1")


async def begin(connection: Executor, request: ReconcileRequest) -> int:
    """Begin a new run and return its id.

    Raises CommandFailed if another run of the route is active.
    """
    try:
        id: int = await connection.fetchval(
            QUERIES["begin_reconciliation"],
            request.route,
            request.actor,
            request.since,
            request.until,
            request.note,
            request.dry_run,
        )
    except asyncpg.UniqueViolationError:
        raise CommandFailed(f"a reconciliation of route {request.route!r} is under way") from None
    return id


async def resume(connection: Executor, id: int, floor: datetime) -> None:
    """Resume a run, but not for events older than `floor`. Raises CommandFailed."""
    try:
        found = await connection.fetchval(QUERIES["resume_reconciliation"], id, floor)
    except asyncpg.UniqueViolationError:
        raise CommandFailed("another reconciliation of the route is under way") from None
    if found is None:
        raise CommandFailed(f"reconciliation {id} has come to its end: there is nothing to resume")


async def start(connection: Executor, id: int) -> None:
    """Start a run. Raises CommandFailed if it was stopped before."""
    if await connection.fetchval(QUERIES["start_reconciliation"], id) is None:
        raise CommandFailed(f"reconciliation {id} was taken over by another run")


async def abandon(connection: Executor, route: str) -> None:
    """Mark the runs of a dead process as abandoned. Call it only while `reconciling` the route."""
    await connection.fetch(QUERIES["abandon_reconciliations"], route)


async def step(
    connection: Executor, id: int, *, phase: str, cursor: str | None, listed: int = 0
) -> None:
    """Record the progress of a run. Raises CommandFailed if another run has taken over."""
    row = await connection.fetchval(QUERIES["step_reconciliation"], id, phase, cursor, listed)
    if row is None:
        raise CommandFailed(f"reconciliation {id} was taken over by another run")


async def count_up(connection: Executor, id: int, missing: int | None = None) -> None:
    """Update a run's counts from its gaps. A dry run stores no gaps, and passes their number."""
    await connection.fetchval(QUERIES["count_reconciliation"], id, missing)


async def end(connection: Executor, id: int, status: str, error: str | None = None) -> None:
    """Record how a run ended."""
    await connection.fetchval(QUERIES["end_reconciliation"], id, status, error)


async def find_reconciliation(connection: Executor, id: int) -> Row:
    """Return a run. Raises NotFound."""
    row = await connection.fetchrow(QUERIES["find_reconciliation"], id)
    if row is None:
        raise NotFound(f"there is no reconciliation {id}")
    return dict(row)


async def list_reconciliations(
    connection: Executor, route: str | None, after: int | None, limit: int
) -> list[Row]:
    """Return runs, newest first, from behind a cursor."""
    rows = await connection.fetch(QUERIES["list_reconciliations"], route, limit, after)
    return [dict(row) for row in rows]


async def last_runs(connection: Executor) -> list[Row]:
    """Return the newest run of each route, without dry runs."""
    return [dict(row) for row in await connection.fetch(QUERIES["last_reconciliations"])]


async def find_resumable(connection: Executor, route: str) -> int | None:
    """Return the newest run of the route if it has not ended."""
    id: int | None = await connection.fetchval(QUERIES["find_resumable"], route)
    return id


async def find_scheduled(connection: Executor, route: str) -> Scheduled:
    """Return the state of the scheduled runs of a route."""
    [row] = await connection.fetch(QUERIES["last_scheduled"], route)
    return Scheduled(
        last_id=row["id"],
        last_status=row["status"],
        finished_at=row["finished_at"],
        good_until=row["good_until"],
        first_since=row["first_since"],
    )


async def forget_runs(connection: Executor, age: timedelta) -> None:
    """Delete old runs that are not needed to continue from."""
    await connection.execute(QUERIES["forget_reconciliations"], age)
