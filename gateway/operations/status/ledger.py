"""The state of routes, handlers, workers and the server, read from the ledger."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gateway.base.errors import Overloaded
from gateway.config.routes import Route
from gateway.config.settings import Settings
from gateway.ledger.bulk import BulkOperation, BulkStatus, list_bulk
from gateway.ledger.connection import QUERIES, Connection, Pooled
from gateway.ledger.figures import MOST_COUNTED, Unsettled, count_unknown_effects, read_unsettled
from gateway.ledger.migrate import applied_version
from gateway.ledger.pauses import Pause
from gateway.ledger.reconciliations import last_runs
from gateway.ledger.rejected import Chosen, group_rejected
from gateway.ledger.statistics import REQUESTS
from gateway.operations.status.engines import list_secrets
from gateway.operations.status.figures import HOUR, StatusFigures, refused_as
from gateway.operations.status.report import (
    HandlerState,
    PostgresState,
    ReconcileState,
    RejectedState,
    ReloadState,
    RouteState,
    SecretState,
    WorkerState,
)
from gateway.worker.sweeper import MISSED_ROUNDS

NEWEST_BULK: Final = 50
MOST_CAUSES: Final = 50

Session = Connection | Pooled


async def read_postgres(session: Session) -> PostgresState:
    """Read the state of the Postgres server."""
    [row] = await session.fetch(QUERIES["describe_server"])
    version = await applied_version(session)
    state: PostgresState = {
        "reachable": True,
        "error": None,
        "schema_version": version,
        **row,  # type: ignore[typeddict-item]  # the same fields
    }
    return state


async def read_workers(session: Session, settings: Settings) -> list[WorkerState]:
    """Return the workers that are alive."""
    lately = settings.sweep * MISSED_ROUNDS
    rows = await session.fetch(QUERIES["list_workers"], lately)
    return [WorkerState(**{**row, "id": str(row["id"])}) for row in rows]  # type: ignore[typeddict-item]


async def read_reconciles(session: Session) -> list[ReconcileState]:
    """Return the last reconcile of each route."""
    wanted = ReconcileState.__annotations__
    rows = await last_runs(session)
    return [ReconcileState(**{name: row[name] for name in wanted}) for row in rows]  # type: ignore[typeddict-item]


async def read_rejected(
    session: Session, now: datetime, figures: StatusFigures
) -> list[RejectedState]:
    """Group the rejected requests of the last hour by cause, except released ones."""
    groups = await group_rejected(session, Chosen(since=now - HOUR), MOST_CAUSES)
    return [
        RejectedState(
            route=group["route"],
            code=group["code"],
            cause=group["cause"],
            detail=group["detail"],
            refused=max(
                figures.hour.get((group["route"], REQUESTS), {}).get(group["code"], 0),
                group["count"],
            ),
            kept=group["count"] - group["released"],
            last_at=group["last_at"],
        )
        for group in groups
        if group["count"] > group["released"]
    ]


async def read_bulk(session: Session) -> list[BulkOperation]:
    """Return the running ones among the newest bulk operations."""
    newest = await list_bulk(session, None, NEWEST_BULK)
    return [bulk for bulk in newest if bulk["status"] is BulkStatus.RUNNING]


async def read_reloads(session: Session) -> list[ReloadState]:
    """Return the last reload of each process."""
    return [ReloadState(**row) for row in await session.fetch(QUERIES["list_reloads"])]  # type: ignore[typeddict-item]


def list_routes(
    routes: Iterable[Route],
    figures: StatusFigures,
    uses: Mapping[tuple[str, str], Mapping[str, Any]],
    items: Mapping[str, int],
    now: datetime,
) -> list[RouteState]:
    """Return the configured routes, and others with statistics or rejected items."""
    configured = {route.name: route for route in routes}
    secrets = {name: list_secrets(route, uses, now) for name, route in configured.items()}
    known = {route for route, handler in figures.hour if handler == REQUESTS}
    known |= {route for route, handler, _ in figures.last_at if handler == REQUESTS}
    return [
        _route(name, configured.get(name), figures, secrets.get(name, []), items.get(name, 0))
        for name in sorted({*configured, *known, *items})
    ]


def _route(
    name: str, route: Route | None, figures: StatusFigures, secrets: list[SecretState], items: int
) -> RouteState:
    hour = figures.requests(name, lately=False)
    return RouteState(
        route=name,
        last_hour=hour["accepted"],
        last_event_at=figures.last_at.get((name, REQUESTS, "accepted")),
        minutes=figures.requests(name, lately=True),
        hour=hour,
        refused_as=refused_as(figures.minutes.get((name, REQUESTS), {})),
        shed=figures.hour.get((name, REQUESTS), {}).get(Overloaded.code, 0),
        rejected_items=items,
        retries=None if route is None else route.provider.retries,
        p50_ms=figures.took_ms(name, REQUESTS, 0.5),
        p99_ms=figures.took_ms(name, REQUESTS, 0.99),
        secrets=secrets,
    )


async def read_handlers(
    session: Session,
    workers: Sequence[WorkerState],
    pauses: Sequence[Pause],
    figures: StatusFigures,
) -> list[HandlerState]:
    """Return the handlers that have unfinished deliveries, or ran in the last hour."""
    served = {name for worker in workers for name in worker["handlers"]}
    found = {
        (route, handler): _empty(route, handler, figures)
        for route, handler in figures.hour
        if handler != REQUESTS
    }
    async with session.transaction(readonly=True):
        unsettled, running = await read_unsettled(session)
        unknown = await count_unknown_effects(session)
    for place, waiting in unsettled.items():
        _note_unsettled(found.setdefault(place, _empty(*place, figures)), waiting)
    for place, n in running.items():
        found.setdefault(place, _empty(*place, figures))["running"] = n
    for place, n in unknown.items():
        _note_unknown(found.setdefault(place, _empty(*place, figures)), n)
    for state in found.values():
        is_idle = not (state["pending"] or state["running"])
        if workers and not is_idle and f"{state['route']} {state['handler']}" not in served:
            state["orphaned"] = True
            state["note"] = "orphaned: no worker has this handler"
    await _note_waits(session, found)
    for state in found.values():
        _note_pause(state, pauses)
    return [found[place] for place in sorted(found)]


def _note_unsettled(state: HandlerState, found: Unsettled) -> None:
    state["pending"] = found.due + found.later + found.held
    state["oldest_due_at"] = found.oldest_due_at
    state["waiting_turn"] = found.held
    state["suspects"] = found.suspects
    if found.suspects:
        state["note"] = f"{found.suspects:,} run alone: a worker was lost twice while they ran"
    state["dead"], state["dead_lately"] = found.dead, found.dead_lately
    if found.most in (found.due, found.later, found.held):
        state["capped"].append("pending")
    if found.dead == found.most:
        state["capped"].append("dead")


def _note_unknown(state: HandlerState, n: int) -> None:
    state["unknown_effects"] = n
    more = "+" if n == MOST_COUNTED else ""
    if n == MOST_COUNTED:
        state["capped"].append("unknown_effects")
    told = f"{n:,}{more} effects of unknown outcome" if n > 1 else "an effect of unknown outcome"
    state["note"] = told if state["note"] is None else f"{state['note']}; {told}"


async def _note_waits(session: Session, found: dict[tuple[str, str], HandlerState]) -> None:
    """Note other reasons for waiting: a rate limit, or a dead letter with the same ordering key."""
    for row in await session.fetch(QUERIES["list_exhausted"]):
        waiting = found.get((row["route"], row["handler"]))
        if waiting is not None and waiting["oldest_due_at"] is not None:
            wait_s = (row["free_at"] - datetime.now(UTC)).total_seconds()
            waiting["note"] = f"at its rate: the next one starts in {max(wait_s, 0):.0f} s"
    for row in await session.fetch(QUERIES["count_blocked"]):
        state = found.get((row["route"], row["handler"]))
        if state is not None:
            state["blocked_keys"] = row["keys"]
            if row["waiting"]:
                state["note"] = f"dead deliveries block {row['keys']} keys, {row['waiting']} wait"


def _note_pause(state: HandlerState, pauses: Sequence[Pause]) -> None:
    """Put a pause at the start of the note, because it matters most."""
    state["paused"] = any(pause.holds(state["route"], state["handler"]) for pause in pauses)
    if state["paused"]:
        state["note"] = "paused" if state["note"] is None else f"paused; {state['note']}"


def _empty(route: str, handler: str, figures: StatusFigures) -> HandlerState:
    runs, failed = figures.runs(route, handler)
    return HandlerState(
        route=route,
        handler=handler,
        pending=0,
        oldest_due_at=None,
        waiting_turn=0,
        suspects=0,
        running=0,
        dead=0,
        dead_lately=0,
        unknown_effects=0,
        capped=[],
        blocked_keys=0,
        orphaned=False,
        paused=False,
        runs=runs,
        failed=failed,
        retried=figures.retried(route, handler),
        success=None if not runs else round(1 - failed / runs, 4),
        p50_ms=figures.took_ms(route, handler, 0.5),
        p99_ms=figures.took_ms(route, handler, 0.99),
        note=None,
    )
