"""Actions on stored data, piece by piece: prune, erase and rekey.

A piece takes about two seconds. Its cursor is where the next one begins.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, NamedTuple

import asyncpg

from gateway.base.errors import CommandFailed, NotFound
from gateway.base.model import Retention
from gateway.ledger.causes import forget_causes
from gateway.ledger.connection import CONTENDED, QUERIES, Connection, Executor, Pooled
from gateway.ledger.encryption import EncryptionKeys
from gateway.ledger.erasure import (
    Erased,
    ErasureRequest,
    Key,
    count_subject,
    erase_events,
    find_subject,
    scrub_words,
)
from gateway.ledger.partitions import count_due, tend
from gateway.ledger.rejected import count_rejected_of, erase_rejected
from gateway.ledger.rekeying import (
    BATCH as REKEY_BATCH,
)
from gateway.ledger.rekeying import (
    KINDS,
    PAST,
    START,
    Marked,
    Rekeyed,
    count_keys,
    reseal,
    seal_past,
)
from gateway.ledger.retention import (
    PruneCursor,
    Pruned,
    Pruner,
    count_expired,
    count_prunable,
    list_routes,
)
from gateway.ledger.walk import (
    FIRST_EVENT,
    TRIES,
    EventCursor,
    Piece,
    Stepped,
    step_rows,
    walk_piece,
)

Session = Connection | Pooled


async def prune(
    ledger: Session,
    retention: Mapping[str, Retention],
    audit: timedelta,
    cursor: PruneCursor | None,
) -> Piece[Pruned, PruneCursor]:
    """Prune from the cursor on, with the steps of the sweep."""
    pruner = Pruner(retention, audit=audit, cursor=cursor)

    async def step(_: PruneCursor) -> Stepped[Pruned, PruneCursor]:
        pruned = await pruner.step(ledger, waits=True)
        return Stepped(pruned, None if pruner.is_through else pruner.cursor)

    piece = await walk_piece(step, pruner.cursor, Pruned(), what="the prune")
    if piece.cursor is not None:
        return piece
    tended = await tend(ledger, retention)
    return Piece(piece.total + Pruned(days=tended.dropped), None)


async def count_to_prune(
    ledger: Executor,
    retention: Mapping[str, Retention],
    audit: timedelta,
    cursor: PruneCursor | None,
) -> Piece[Pruned, PruneCursor]:
    """Count what `prune` would remove, without changes."""
    if not retention:
        return Piece(Pruned(), None)
    total = Pruned()
    if cursor is None:
        expired = await count_expired(ledger, retention, audit)
        total = expired + Pruned(days=await count_due(ledger))

    async def step(cursor: EventCursor) -> Stepped[Pruned, EventCursor]:
        return Stepped(*await count_prunable(ledger, retention, cursor))

    [first, *_] = (cursor or PruneCursor()).events
    piece = await walk_piece(step, first, total, what="the count")
    return Piece(piece.total, piece.cursor and PruneCursor(events=(piece.cursor,)))


async def list_left_alone(ledger: Executor, retention: Mapping[str, Retention]) -> list[str]:
    """List routes that have events but no configured retention. Their events are never pruned."""
    return [route for route in await list_routes(ledger) if route not in retention]


BATCH: Final = 200
"""The number of events that a step of an erasure reads."""

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
    ledger: Executor, subject: ErasureSubject, cursor: EventCursor | None
) -> Piece[Erased, EventCursor]:
    """Count what an erasure would remove after the cursor."""
    rejected = 0
    if cursor is None:
        rejected = await count_rejected_of(ledger, subject.name, subject.route)
    total = Erased(rejected=rejected)
    return await _walk(ledger, subject, cursor, total, lambda keys: count_subject(ledger, keys))


async def erase(
    ledger: Session,
    subject: ErasureSubject,
    cursor: EventCursor | None,
    *,
    actor: str,
    reason: str,
) -> Piece[Erased, EventCursor]:
    """Erase the events after the cursor, in atomic steps.

    Events of the account that arrive after the start may be left.
    """
    if subject.account is not None and subject.account in reason:
        raise CommandFailed("reason: found the account in it, and it is kept; expected one without")
    request, rejected = ErasureRequest(actor=actor, reason=reason), 0
    if cursor is None:
        if subject.account is not None:
            await scrub_words(ledger, subject.account)
        rejected = await erase_rejected(
            ledger, subject.name, subject.route, actor=actor, reason=reason
        )
    erased = await _walk(
        ledger,
        subject,
        cursor,
        Erased(rejected=rejected),
        lambda keys: _erase_unlocked(ledger, keys, request),
    )
    await forget_causes(ledger)
    return erased


async def _walk(
    ledger: Executor,
    subject: ErasureSubject,
    cursor: EventCursor | None,
    total: Erased,
    process: Callable[[list[Key]], Awaitable[Erased]],
) -> Piece[Erased, EventCursor]:
    account = subject.account
    if account is None:
        try:
            return Piece(total + await process([await _only(ledger, subject)]), None)
        except NotFound:
            if total.rejected:  # it was only ever rejected, never accepted
                return Piece(total, None)
            raise

    async def step(cursor: EventCursor) -> Stepped[Erased, EventCursor]:
        keys, following = await find_subject(ledger, account, subject.route, cursor, BATCH)
        return Stepped(await process(keys), None if len(keys) < BATCH else following)

    return await walk_piece(step, cursor or FIRST_EVENT, total, what="the erasure")


async def _erase_unlocked(ledger: Session, keys: list[Key], request: ErasureRequest) -> Erased:
    """Erase the events, and retry those that are locked.

    Events that stay locked by another transaction count as running.
    """
    total, left = Erased(), keys
    for attempt in range(TRIES):
        if not left:
            return total
        await asyncio.sleep(AGAIN_S if attempt else 0)
        with suppress(*CONTENDED):  # the payload moved to another daily partition in between
            more, left = await erase_events(ledger, left, request)
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


REKEY_ORDER: Final = (*KINDS, PAST)


class RekeyCursor(NamedTuple):
    """Cursor: the kind of rows, the key or route, and the last row."""

    kind: str
    name: str
    row: Marked = START


async def rekey(
    session: Callable[[], AbstractAsyncContextManager[Session]],
    encryption: EncryptionKeys,
    cursor: RekeyCursor | None,
    *,
    route: str | None = None,
    rate: int | None = None,
) -> Piece[Rekeyed, RekeyCursor]:
    """Re-encrypt rows of older keys under the first key, with at most `rate` rows per second.

    It is safe to stop it anywhere and to begin anew. Rows under a key that is not in the ring are
    left unchanged.
    """
    ring, rows = encryption.ring, step_rows(rate, REKEY_BATCH)
    if not ring.ids:
        raise CommandFailed("there are no keys: set `keys` in routes.yaml")
    async with session() as ledger:
        tasks = await _tasks(ledger, encryption, route)

    async def step(cursor: RekeyCursor) -> Stepped[Rekeyed, RekeyCursor]:
        kind, name, row = cursor
        async with session() as ledger:
            if kind == PAST:
                done, last = await seal_past(ledger, encryption, name, row, most=rows)
            else:
                done, last = await reseal(ledger, ring, kind, name, row, route=route, most=rows)
        following = _task_after(tasks, cursor) if last is None else cursor._replace(row=last)
        return Stepped(done, following, done.total)

    contended = (*CONTENDED, asyncpg.UniqueViolationError)
    first = _at(tasks, cursor)
    if first is None:
        return Piece(Rekeyed(), None)
    return await walk_piece(
        step, first, Rekeyed(), what="the rekey", rate=rate, contended=contended
    )


async def _tasks(
    ledger: Session, encryption: EncryptionKeys, route: str | None
) -> list[RekeyCursor]:
    """Return the starting points of all walks, in order."""
    ring = encryption.ring
    old = [use.key_id for use in await count_keys(ledger) if use.key_id != ring.first]
    routes = sorted(encryption.routes if route is None else encryption.routes & {route})
    return [
        *(RekeyCursor(kind, key) for kind in KINDS for key in old if key in ring.ids),
        *(RekeyCursor(PAST, name) for name in routes),
    ]


def _at(tasks: Sequence[RekeyCursor], cursor: RekeyCursor | None) -> RekeyCursor | None:
    """Return the cursor itself if its walk exists, or else the start of the next walk."""
    if cursor is None:
        return tasks[0] if tasks else None
    if any((cursor.kind, cursor.name) == (task.kind, task.name) for task in tasks):
        return cursor
    return _task_after(tasks, cursor)


def _task_after(tasks: Sequence[RekeyCursor], cursor: RekeyCursor) -> RekeyCursor | None:
    return next((task for task in tasks if _rank(task) > _rank(cursor)), None)


def _rank(cursor: RekeyCursor) -> tuple[int, str]:
    return REKEY_ORDER.index(cursor.kind), cursor.name
