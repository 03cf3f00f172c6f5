"""Pause and resume handlers across all workers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime

from typing_extensions import TypedDict

from gateway.base.errors import CommandFailed, NotFound
from gateway.base.names import NO_NAMES, Names
from gateway.ledger import pauses
from gateway.ledger.connection import Executor
from gateway.ledger.pauses import (
    Handler,
    Pause,
    count_held,
    find_resumed,
    list_known_handlers,
    list_pauses,
)


class PauseRow(TypedDict):
    """A pause. Without a handler it applies to the whole route."""

    route: str
    handler: str | None
    actor: str
    reason: str | None
    since: datetime


class PausedAnswer(TypedDict):
    """The result of a pause."""

    route: str
    handler: str | None
    since: datetime
    is_new: bool
    """False if it was already paused and only the reason is new."""
    running: int
    """Deliveries in flight, which are allowed to finish."""
    waiting: int


class ResumedAnswer(TypedDict):
    """The result of a resume."""

    route: str
    handler: str | None
    since: datetime
    """When the ended pause began."""
    waiting: int
    still_paused: list[PauseRow]
    """Other pauses that still hold back some or all of the deliveries."""


def pause_row(pause: Pause) -> PauseRow:
    """Convert a pause to a row of the listing."""
    row: PauseRow = asdict(pause)  # type: ignore[assignment]
    return row


async def pause(
    ledger: Executor,
    route: str,
    handler: str | None,
    *,
    actor: str,
    reason: str,
    configured: Callable[[], Iterable[Handler]],
    names: Names = NO_NAMES,
) -> PausedAnswer:
    """Pause a handler, or all handlers of a route. Raises NotFound for an unknown name.

    The configuration is only read for names that are not in the ledger.
    """
    known = await list_known_handlers(ledger)
    if not _is_known(known, route, handler):
        known = sorted({*known, *configured()})
        if not _is_known(known, route, handler):
            raise NotFound(_unknown(known, route, handler, names))
    since, is_new = await pauses.pause(ledger, route, handler, actor=actor, reason=reason)
    running, waiting = await count_held(ledger, route, handler)
    return {
        "route": route,
        "handler": handler,
        "since": since,
        "is_new": is_new,
        "running": running,
        "waiting": waiting,
    }


async def resume(
    ledger: Executor,
    route: str,
    handler: str | None,
    *,
    actor: str,
    reason: str | None,
    names: Names = NO_NAMES,
) -> tuple[ResumedAnswer, Sequence[int]]:
    """End a pause. Raises CommandFailed if there is none.

    Also returns the ids of deliveries that are due, to wake workers with.
    """
    ended = await pauses.resume(ledger, route, handler, actor=actor, reason=reason)
    others = [other for other in await list_pauses(ledger) if other.route == route]
    if ended is None:
        raise CommandFailed(_not_paused(others, route, handler, names))
    known = await list_known_handlers(ledger)
    freed = [key for key in known if ended.holds(*key) and not any(p.holds(*key) for p in others)]
    _, waiting = await count_held(ledger, route, handler)
    answer: ResumedAnswer = {
        "route": route,
        "handler": handler,
        "since": ended.since,
        "waiting": waiting,
        "still_paused": [pause_row(p) for p in others if None in (p.handler, handler)],
    }
    return answer, await find_resumed(ledger, freed)


def _is_known(known: Iterable[Handler], route: str, handler: str | None) -> bool:
    return any(route == r and handler in (None, h) for r, h in known)


def _unknown(known: Iterable[Handler], route: str, handler: str | None, names: Names) -> str:
    known = [(names.routes.label(r), names.handlers.label(h)) for r, h in known]
    route = names.routes.label(route)
    handler = None if handler is None else names.handlers.label(handler)
    of_route = [h for r, h in known if r == route and h]
    if handler is None or not any(r == route for r, _ in known):
        return f"there is no route {route!r}: known are {_listed(r for r, _ in known)}"
    return f"route {route!r} has no handler {handler!r}: known are {_listed(of_route)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"


def _not_paused(others: list[Pause], route: str, handler: str | None, names: Names) -> str:
    route = names.routes.label(route)
    what = route if handler is None else f"{route} {names.handlers.label(handler)}"
    inside = [names.handlers.label(p.handler) for p in others if p.handler is not None]
    if handler is not None and len(inside) < len(others):
        return (
            f"{what} is not paused by itself, but all of {route} is: "
            f"end that with `gateway resume {route}`"
        )
    if handler is None and inside:
        return f"{what} is not paused as a whole: only {', '.join(inside)}, to be resumed by name"
    return f"{what} is not paused"
