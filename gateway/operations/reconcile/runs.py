"""Begin, resume and carry out reconcile runs."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import httpx
import structlog

from gateway.base.errors import CommandFailed, GatewayError, RateLimited
from gateway.config.registry import Registry
from gateway.config.routes import Config, Route
from gateway.ledger import reconciliations as ledger
from gateway.ledger.bulk import read_clock
from gateway.ledger.claims import Claimer
from gateway.ledger.connection import TROUBLE, Connection, Pooled, close_quietly, connect, describe
from gateway.ledger.encryption import ClaimCodec, EncryptionKeys
from gateway.ledger.reconciliations import ReconcileRequest, find_reconciliation, reconciling
from gateway.operations.reconcile.api import Listing, Rest
from gateway.operations.reconcile.clients import (
    find_route,
    list_github,
    list_stripe,
    make_api,
    reconcile_of,
    show_key,
)
from gateway.operations.reconcile.recovery import Claims, Recovery, Redeliveries, Work
from gateway.operations.reconcile.run import (
    ON_ITS_WAY,
    OVERLAP,
    Progress,
    ReconcileRun,
    cut,
    limits,
)
from gateway.operations.reconcile.stripe import StripeEvents

NAME: Final = "gateway reconcile"
HOLDER: Final = f"{NAME} lock"
COMMAND_S: Final = 30.0
BEAT_S: Final = 20.0
LAST_WORDS_S: Final = 2.0
FIGURES: Final = ("listed", "missing", "recovered", "outstanding", "unrecoverable")

Row = dict[str, Any]
log = structlog.get_logger("gateway.reconcile")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileContext:
    """Dependencies of a run."""

    url: str
    config: Config
    registry: Registry
    encryption: EncryptionKeys
    wake: Callable[[Sequence[int]], Awaitable[None]]
    """Wakes workers up for new deliveries."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    rest: Rest = asyncio.sleep


async def begin(
    connection: Connection | Pooled,
    means: ReconcileContext,
    route_name: str,
    *,
    actor: str,
    since: datetime | None,
    dry_run: bool = False,
) -> int:
    """Begin a run and return its id.

    Raises CommandFailed or ConfigInvalid if it is not possible.
    """
    route = find_route(means.config, route_name)
    show_key(means.config, route, means.environ)
    async with reconciling(connection, route.name):
        # Use the ledger's clock, which also decides when event ids are forgotten. A host clock that
        # is behind would fetch events whose ids were forgotten, and one that is ahead would leave a
        # gap before the next run.
        now = await read_clock(connection, None)
        await ledger.abandon(connection, route.name)
        since, note = cut(route, since or await _go_on_from(connection, route, actor, now), now)
        request = ReconcileRequest(
            route=route.name,
            actor=actor,
            since=since,
            until=max(now - ON_ITS_WAY, since),
            note=note,
            dry_run=dry_run,
        )
        return await ledger.begin(connection, request)


async def resume(
    connection: Connection | Pooled, means: ReconcileContext, route_name: str, id: int | None = None
) -> int:
    """Resume this run or the route's last one, and return its id. Raises CommandFailed."""
    route = find_route(means.config, route_name)
    show_key(means.config, route, means.environ)
    async with reconciling(connection, route.name):
        await ledger.abandon(connection, route.name)
        id = id or await ledger.find_resumable(connection, route.name)
        if id is None:
            raise CommandFailed(f"no reconciliation of route {route.label!r} is to be resumed")
        bounds = limits(route, await read_clock(connection, None))
        await ledger.resume(connection, id, max(bounds.kept_since, bounds.known_since))
    return id


async def _go_on_from(
    connection: Connection | Pooled, route: Route, actor: str, now: datetime
) -> datetime:
    """Return the time at which the next run begins: the end of the last successful scheduled run.

    The first scheduled run begins now, because earlier events may have been processed by another
    system. Until one succeeds, later runs begin at the same time as the first one.
    """
    scheduled = await ledger.find_scheduled(connection, route.name)
    if scheduled.good_until is not None:
        return scheduled.good_until - OVERLAP
    if actor == ledger.SCHEDULE:
        return scheduled.first_since or now - ON_ITS_WAY
    raise CommandFailed(
        f"route {route.label!r} has not been reconciled yet: say from when on with --since"
    )


async def carry_out(means: ReconcileContext, id: int) -> Row:
    """Carry out a run that was begun, and return its row with the outcome.

    The run has connections of its own. The lock of the route is bound to one of them, so it is
    released however the run ends.
    """
    async with _connected(means.url, HOLDER) as holder, _connected(means.url, NAME) as connection:
        row = await find_reconciliation(connection, id)
        async with reconciling(holder, row["route"]):
            await ledger.start(connection, id)
            await _carry_out(connection, holder, means, row)
        return await find_reconciliation(connection, id)


@asynccontextmanager
async def _connected(url: str, name: str) -> AsyncIterator[Connection]:
    connection = await connect(url, name=name, command_timeout_s=COMMAND_S)
    try:
        yield connection
    finally:
        await close_quietly(connection)


def tell(row: Row) -> None:
    """Log the outcome of a run that no caller waits for."""
    fields = {"route": row["route"], "run": row["id"]}
    if row["status"] == "done":
        log.info("reconciled", **fields, **{name: row[name] for name in FIGURES})
    else:
        log.warning("reconcile_failed", **fields, status=row["status"], reason=row["error"])


async def _carry_out(
    connection: Connection, holder: Connection, means: ReconcileContext, row: Row
) -> None:
    try:
        async with _prepared(connection, holder, means, row) as run:
            await run.carry_out()
    except RateLimited as limit:
        await _end(connection, row, "stopped", str(limit))
    except (GatewayError, *TROUBLE) as error:
        with suppress(*TROUBLE):
            await _end(connection, row, "failed", describe(error))
    except asyncio.CancelledError:
        with suppress(*TROUBLE):
            async with asyncio.timeout(LAST_WORDS_S):
                await _end(connection, row, "stopped", "it was interrupted")
        raise
    else:
        await ledger.end(connection, row["id"], "done")


async def _end(connection: Connection, row: Row, status: str, error: str) -> None:
    """End a run early, with the counts so far."""
    if not row["dry_run"]:
        await ledger.count_up(connection, row["id"])
    await ledger.end(connection, row["id"], status, error)


@asynccontextmanager
async def _prepared(
    connection: Connection, holder: Connection, means: ReconcileContext, row: Row
) -> AsyncIterator[ReconcileRun]:
    """Create the run and its clients, and close the clients afterwards."""
    route = find_route(means.config, row["route"])
    reconcile = reconcile_of(route)
    key = show_key(means.config, route, means.environ)
    progress = Progress(
        connection=connection,
        holder=holder,
        run_id=row["id"],
        phase=row["phase"],
        cursor=row["cursor"],
    )
    rest = _beating(means.rest, progress)
    work = Work(
        connection=connection,
        run_id=row["id"],
        route=route,
        until=row["until"],
        rest=rest,
        beat=progress.beat,
    )
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient())
        api = make_api(route, reconcile, key, http, rest)
        listing: Listing
        recovery: Recovery
        if route.provider.name == "stripe":
            listing = events = list_stripe(api, means.registry, route, reconcile, row)
            recovery = await _claims(stack, means, work, events)
        else:
            listing = deliveries = list_github(api, route, reconcile, row)
            recovery = Redeliveries(
                work=work, deliveries=deliveries, rate=reconcile.rate, patience=reconcile.wait
            )
        yield ReconcileRun(
            connection=connection,
            row=row,
            route=route,
            listing=listing,
            recovery=recovery,
            progress=progress,
        )


async def _claims(
    stack: AsyncExitStack, means: ReconcileContext, work: Work, events: StripeEvents
) -> Claims:
    accepted: list[int] = []
    claimer = Claimer(means.url, on_accepted=accepted.extend, codec=ClaimCodec(means.encryption))
    await claimer.start()
    stack.push_async_callback(claimer.stop)
    return Claims(
        work=work,
        events=events,
        claimer=claimer,
        registry=means.registry,
        accepted=accepted,
        wake=means.wake,
    )


def _beating(rest: Rest, progress: Progress) -> Rest:
    """Return a function that waits in short steps and updates the run's heartbeat meanwhile."""

    async def wait(seconds: float) -> None:
        await progress.beat()
        while seconds > 0:
            await rest(min(seconds, BEAT_S))
            seconds -= BEAT_S
            await progress.beat()

    return wait
