"""Pauses and resumes handlers on a person's order, across all workers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from gateway.errors import CommandFailed, NotFound
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """What a pause holds back."""

    route: str
    handler: str | None
    since: datetime
    is_new: bool
    """False where it was paused before, and has only a new reason now."""
    running: int
    """Deliveries that had begun, and finish."""
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What a resume lets run."""

    route: str
    handler: str | None
    since: datetime
    """When the pause that has ended began."""
    waiting: int
    still_paused: tuple[Pause, ...]
    """Other pauses that go on holding some of it back, or all."""
    due: tuple[int, ...]
    """Deliveries to wake a worker with."""


async def pause(
    ledger: Executor,
    route: str,
    handler: str | None,
    *,
    actor: str,
    reason: str,
    configured: Callable[[], Iterable[Handler]],
) -> Paused:
    """Pauses a handler, or all of a route; a name that nobody knows is refused.

    The configuration is asked only for what the ledger has not heard of.
    """
    known = await list_known_handlers(ledger)
    if not _is_known(known, route, handler):
        known = sorted({*known, *configured()})
        if not _is_known(known, route, handler):
            raise NotFound(_unknown(known, route, handler))
    since, is_new = await pauses.pause(ledger, route, handler, actor=actor, reason=reason)
    running, waiting = await count_held(ledger, route, handler)
    return Paused(
        route=route, handler=handler, since=since, is_new=is_new, running=running, waiting=waiting
    )


async def resume(
    ledger: Executor, route: str, handler: str | None, *, actor: str, reason: str | None
) -> Resumed:
    """Ends a pause; refused where there is none."""
    ended = await pauses.resume(ledger, route, handler, actor=actor, reason=reason)
    others = [other for other in await list_pauses(ledger) if other.route == route]
    if ended is None:
        raise CommandFailed(_not_paused(others, route, handler))
    known = await list_known_handlers(ledger)
    freed = [key for key in known if ended.holds(*key) and not any(p.holds(*key) for p in others)]
    _, waiting = await count_held(ledger, route, handler)
    return Resumed(
        route=route,
        handler=handler,
        since=ended.since,
        waiting=waiting,
        still_paused=tuple(p for p in others if None in (p.handler, handler)),
        due=tuple(await find_resumed(ledger, freed)),
    )


def _is_known(known: Iterable[Handler], route: str, handler: str | None) -> bool:
    return any(route == r and handler in (None, h) for r, h in known)


def _unknown(known: Iterable[Handler], route: str, handler: str | None) -> str:
    of_route = [h for r, h in known if r == route and h]
    if handler is None or not any(r == route for r, _ in known):
        return f"there is no route {route!r}: known are {_listed(r for r, _ in known)}"
    return f"route {route!r} has no handler {handler!r}: known are {_listed(of_route)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"


def _not_paused(others: list[Pause], route: str, handler: str | None) -> str:
    what = route if handler is None else f"{route} {handler}"
    inside = [p.handler for p in others if p.handler is not None]
    if handler is not None and len(inside) < len(others):
        return (
            f"{what} is not paused by itself, but all of {route} is: "
            f"end that with `gateway resume {route}`"
        )
    if handler is None and inside:
        return f"{what} is not paused as a whole: only {', '.join(inside)}, to be resumed by name"
    return f"{what} is not paused"
