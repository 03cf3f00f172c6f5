"""Begins, resumes and carries out runs."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import httpx
import structlog

from gateway.errors import CommandFailed, GatewayError, RateLimited
from gateway.ledger import reconciliations as ledger
from gateway.ledger.bulk import read_clock
from gateway.ledger.claims import Claimer
from gateway.ledger.connection import TROUBLE, Connection, Pooled, close_quietly, connect, describe
from gateway.ledger.reconciliations import Order, find_reconciliation, reconciling
from gateway.ledger.sealed import Vault
from gateway.reconcile.api import Rest
from gateway.reconcile.clients import (
    find_route,
    list_github,
    list_stripe,
    make_api,
    reconcile_of,
    show_key,
)
from gateway.reconcile.listing import Listing
from gateway.reconcile.recovery import Claims, Recovery, Redeliveries, Work
from gateway.reconcile.run import Progress, Run
from gateway.reconcile.span import ON_ITS_WAY, OVERLAP, cut, limits
from gateway.reconcile.stripe import StripeEvents
from gateway.registry import Registry
from gateway.routes import Config, Route

NAME: Final = "gateway reconcile"
HOLDER: Final = f"{NAME} lock"
COMMAND_S: Final = 30.0
BEAT_S: Final = 20.0
LAST_WORDS_S: Final = 2.0
FIGURES: Final = ("listed", "missing", "recovered", "outstanding", "unrecoverable")

Row = dict[str, Any]
log = structlog.get_logger("gateway.reconcile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What runs need."""

    url: str
    config: Config
    registry: Registry
    vault: Vault
    wake: Callable[[Sequence[int]], Awaitable[None]]
    """Tells workers of new deliveries."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    rest: Rest = asyncio.sleep


async def begin(
    connection: Connection | Pooled,
    means: Means,
    route_name: str,
    *,
    actor: str,
    since: datetime | None,
    dry_run: bool = False,
) -> int:
    """A new run's id. Raises CommandFailed or ConfigInvalid where there can be none."""
    route = find_route(means.config, route_name)
    show_key(means.config, route, means.environ)
    async with reconciling(connection, route.name):
        # By the clock by which keys are forgotten: a host whose own is behind would fetch what was
        # seen and forgotten, and one that is ahead leave a hole before the next run.
        now = await read_clock(connection, None)
        await ledger.abandon(connection, route.name)
        since, note = cut(route, since or await _go_on_from(connection, route, actor, now), now)
        order = Order(
            route=route.name,
            actor=actor,
            since=since,
            until=max(now - ON_ITS_WAY, since),
            note=note,
            dry_run=dry_run,
        )
        return await ledger.begin(connection, order)


async def resume(
    connection: Connection | Pooled, means: Means, route_name: str, id: int | None = None
) -> int:
    """The id of the run that goes on: this one, or the route's last. Raises CommandFailed."""
    route = find_route(means.config, route_name)
    show_key(means.config, route, means.environ)
    async with reconciling(connection, route.name):
        await ledger.abandon(connection, route.name)
        id = id or await ledger.find_resumable(connection, route.name)
        if id is None:
            raise CommandFailed(f"no reconciliation of route {route.name!r} is to be resumed")
        bounds = limits(route, await read_clock(connection, None))
        await ledger.resume(connection, id, max(bounds.kept_since, bounds.known_since))
    return id


async def _go_on_from(
    connection: Connection | Pooled, route: Route, actor: str, now: datetime
) -> datetime:
    """Where the last good scheduled run ended. The first one begins now: what happened before the
    gateway was there may have been dealt with by something else. Until there is a good one, those
    that follow begin where it did."""
    scheduled = await ledger.find_scheduled(connection, route.name)
    if scheduled.good_until is not None:
        return scheduled.good_until - OVERLAP
    if actor == ledger.SCHEDULE:
        return scheduled.first_since or now - ON_ITS_WAY
    raise CommandFailed(
        f"route {route.name!r} has not been reconciled yet: say from when on with --since"
    )


async def carry_out(means: Means, id: int) -> Row:
    """Carries a run out that was begun, and says how it ended in its row, which is returned.

    It has connections of its own: with one of them the right to the route ends, however it ends.
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
    """In the log, where nobody waits for the end."""
    fields = {"route": row["route"], "run": row["id"]}
    if row["status"] == "done":
        log.info("reconciled", **fields, **{name: row[name] for name in FIGURES})
    else:
        log.warning("reconcile_failed", **fields, status=row["status"], reason=row["error"])


async def _carry_out(connection: Connection, holder: Connection, means: Means, row: Row) -> None:
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
    """Before its time, with what it had come to."""
    if not row["dry_run"]:
        await ledger.count_up(connection, row["id"])
    await ledger.end(connection, row["id"], status, error)


@asynccontextmanager
async def _prepared(
    connection: Connection, holder: Connection, means: Means, row: Row
) -> AsyncIterator[Run]:
    """The run with its clients, which end with it."""
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
        yield Run(
            connection=connection,
            row=row,
            route=route,
            listing=listing,
            recovery=recovery,
            progress=progress,
        )


async def _claims(stack: AsyncExitStack, means: Means, work: Work, events: StripeEvents) -> Claims:
    accepted: list[int] = []
    claimer = Claimer(means.url, on_accepted=accepted.extend)
    await claimer.start()
    stack.push_async_callback(claimer.stop)
    return Claims(
        work=work,
        events=events,
        claimer=claimer,
        registry=means.registry,
        vault=means.vault,
        accepted=accepted,
        wake=means.wake,
    )


def _beating(rest: Rest, progress: Progress) -> Rest:
    """Waits, or goes on at once, and says every now and then that somebody is there."""

    async def wait(seconds: float) -> None:
        await progress.beat()
        while seconds > 0:
            await rest(min(seconds, BEAT_S))
            seconds -= BEAT_S
            await progress.beat()

    return wait
