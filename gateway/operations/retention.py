"""Prune events past their retention, and erase the events of one subject."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from gateway.base.errors import CommandFailed, NotFound
from gateway.base.model import Retention
from gateway.ledger.causes import forget_causes
from gateway.ledger.connection import CONTENDED, QUERIES, Connection, Executor, Pooled
from gateway.ledger.erasure import (
    START,
    Erased,
    ErasureRequest,
    Key,
    Mark,
    count_subject,
    erase_events,
    find_subject,
    scrub_words,
)
from gateway.ledger.partitions import count_due, tend
from gateway.ledger.rejected import count_rejected_of, erase_rejected
from gateway.ledger.retention import (
    PruneCursor,
    Pruned,
    Pruner,
    count_expired,
    count_prunable,
    list_routes,
)

PIECE_S: Final = 2.0
"""Time limit of one piece, so that no HTTP request runs for minutes."""


async def prune(
    ledger: Connection | Pooled,
    retention: Mapping[str, Retention],
    audit: timedelta,
    place: PruneCursor | None,
) -> tuple[Pruned, PruneCursor | None]:
    """Prune from the cursor on, with the steps of the sweep.

    Also returns the next cursor, or None if there is nothing more.
    """
    pruner = Pruner(retention, audit=audit, place=place)
    total, began_s = Pruned(), time.monotonic()
    while not pruner.is_through:
        total += await pruner.step(ledger, waits=True)
        if time.monotonic() - began_s > PIECE_S:
            return total, pruner.place
    tended = await tend(ledger, retention)
    return total + Pruned(days=tended.dropped), None


async def count_to_prune(
    ledger: Executor,
    retention: Mapping[str, Retention],
    audit: timedelta,
    place: PruneCursor | None,
) -> tuple[Pruned, PruneCursor | None]:
    """Count what `prune` would remove, without changes."""
    if not retention:
        return Pruned(), None
    total = Pruned()
    if place is None:
        expired = await count_expired(ledger, retention, audit)
        total = expired + Pruned(days=await count_due(ledger))
    [mark, *_] = (place or PruneCursor()).marks
    began_s = time.monotonic()
    while True:
        counted, mark = await count_prunable(ledger, retention, mark)
        total += counted
        if not counted.more:
            return total, None
        if time.monotonic() - began_s > PIECE_S:
            return total, PruneCursor(marks=(mark,))


async def list_left_alone(ledger: Executor, retention: Mapping[str, Retention]) -> list[str]:
    """List routes that have events but no configured retention. Their events are never pruned."""
    return [route for route in await list_routes(ledger) if route not in retention]


BATCH: Final = 200
"""Time limit of one piece, so that no HTTP request runs for minutes."""

TRIES: Final = 20
AGAIN_S: Final = 0.05
"""Delay before a retry. Another transaction usually releases its locks after some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureSubject:
    """The events to erase: those of an account, or a single event."""

    account: str | None = None
    event_id: str | None = None
    route: str | None = None

    def __post_init__(self) -> None:
        if (self.account is None) == (self.event_id is None):
            raise CommandFailed("expected either an account or one event")

    @property
    def name(self) -> str:
        """The value by which rejected requests of the subject are found."""
        return self.account or self.event_id or ""


async def count_to_erase(
    ledger: Executor, subject: ErasureSubject, after: Mark | None
) -> tuple[Erased, Mark | None]:
    """Count what an erasure would remove after the cursor.

    Also returns the next cursor, or None if there is nothing more.
    """
    rejected = 0
    if after is None:
        rejected = await count_rejected_of(ledger, subject.name, subject.route)
    return await _walk(ledger, subject, after, rejected, lambda keys: count_subject(ledger, keys))


async def erase(
    ledger: Connection | Pooled,
    subject: ErasureSubject,
    after: Mark | None,
    *,
    actor: str,
    reason: str,
) -> tuple[Erased, Mark | None]:
    """Erase the events after the cursor, in atomic steps. Returns the same as `count_to_erase`.

    Events of the account that arrive after the start may be left.
    """
    if subject.account is not None and subject.account in reason:
        raise CommandFailed("reason: found the account in it, and it is kept; expected one without")
    order = ErasureRequest(actor=actor, reason=reason)
    if subject.account is not None and after is None:
        await scrub_words(ledger, subject.account)
    rejected = 0
    if after is None:
        rejected = await erase_rejected(
            ledger, subject.name, subject.route, actor=actor, reason=reason
        )
    erased = await _walk(
        ledger, subject, after, rejected, lambda keys: _erase_patiently(ledger, keys, order)
    )
    await forget_causes(ledger)
    return erased


async def _walk(
    ledger: Executor,
    subject: ErasureSubject,
    after: Mark | None,
    rejected: int,
    look_at: Callable[[list[Key]], Awaitable[Erased]],
) -> tuple[Erased, Mark | None]:
    total, mark, began_s = Erased(rejected=rejected), after or START, time.monotonic()
    if subject.account is None:
        try:
            return total + await look_at([await _only(ledger, subject)]), None
        except NotFound:
            if rejected:  # it was only ever rejected, never accepted
                return total, None
            raise
    while True:
        keys, mark = await find_subject(ledger, subject.account, subject.route, mark, BATCH)
        total += await look_at(keys)
        if len(keys) < BATCH:
            return total, None
        if time.monotonic() - began_s > PIECE_S:
            return total, mark


async def _erase_patiently(
    ledger: Connection | Pooled, keys: list[Key], order: ErasureRequest
) -> Erased:
    """Erase the events, and retry if they are locked.

    Events that stay locked by another transaction count as running.
    """
    total, left = Erased(), keys
    for attempt in range(TRIES):
        if not left:
            return total
        await asyncio.sleep(AGAIN_S if attempt else 0)
        with suppress(*CONTENDED):  # the payload moved to another daily partition in between
            more, left = await erase_events(ledger, left, order)
            total += more
    return replace(total, running=(*total.running, *left))


async def _only(ledger: Executor, subject: ErasureSubject) -> Key:
    routes = None if subject.route is None else [subject.route]
    found = await ledger.fetch(QUERIES["find_events"], routes, subject.event_id)
    if not found:
        on = "" if subject.route is None else f" on route {subject.route!r}"
        raise NotFound(f"there is no event {subject.event_id!r}{on}")
    if len(found) > 1:
        names = ", ".join(row["route"] for row in found)
        raise CommandFailed(f"this id is on several routes ({names}): say which")
    return found[0]["route"], found[0]["event_id"]
