"""Erases what the ledger holds of one subject, on a person's order, piece by piece."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from gateway.errors import CommandFailed, NotFound
from gateway.ledger.causes import forget_causes
from gateway.ledger.connection import CONTENDED, Connection, Executor, Pooled
from gateway.ledger.erasure import (
    START,
    Erased,
    Key,
    Mark,
    Order,
    count_subject,
    erase_events,
    find_subject,
    scrub_words,
)
from gateway.ledger.queries import QUERIES
from gateway.ledger.rejected import count_rejected_of, erase_rejected

BATCH: Final = 200
PIECE_S: Final = 2.0
"""How long one piece may go on: nobody's request runs for minutes."""

TRIES: Final = 20
AGAIN_S: Final = 0.05
"""What another transaction holds is free again after some milliseconds, unless it hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whose events: those of an account, or one event."""

    account: str | None = None
    event_id: str | None = None
    route: str | None = None

    def __post_init__(self) -> None:
        if (self.account is None) == (self.event_id is None):
            raise CommandFailed("expected either an account or one event")

    @property
    def name(self) -> str:
        """By what it is known in what was refused."""
        return self.account or self.event_id or ""


async def count_to_erase(
    ledger: Executor, subject: Subject, after: Mark | None
) -> tuple[Erased, Mark | None]:
    """What an erasure would take, from behind a mark, and the mark where there may be more."""
    rejected = 0
    if after is None:
        rejected = await count_rejected_of(ledger, subject.name, subject.route)
    return await _walk(ledger, subject, after, rejected, lambda keys: count_subject(ledger, keys))


async def erase(
    ledger: Connection | Pooled, subject: Subject, after: Mark | None, *, actor: str, reason: str
) -> tuple[Erased, Mark | None]:
    """Erases from behind a mark, in steps that are whole or not at all; as count_to_erase.

    Events of the account that arrive after it has begun may be left as they are.
    """
    if subject.account is not None and subject.account in reason:
        raise CommandFailed("reason: found the account in it, and it is kept; expected one without")
    order = Order(actor=actor, reason=reason)
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
    subject: Subject,
    after: Mark | None,
    rejected: int,
    look_at: Callable[[list[Key]], Awaitable[Erased]],
) -> tuple[Erased, Mark | None]:
    total, mark, began_s = Erased(rejected=rejected), after or START, time.monotonic()
    if subject.account is None:
        try:
            return total + await look_at([await _only(ledger, subject)]), None
        except NotFound:
            if rejected:  # refused, and never accepted
                return total, None
            raise
    while True:
        keys, mark = await find_subject(ledger, subject.account, subject.route, mark, BATCH)
        total += await look_at(keys)
        if len(keys) < BATCH:
            return total, None
        if time.monotonic() - began_s > PIECE_S:
            return total, mark


async def _erase_patiently(ledger: Connection | Pooled, keys: list[Key], order: Order) -> Erased:
    """What stays in another's hands counts as running."""
    total, left = Erased(), keys
    for attempt in range(TRIES):
        if not left:
            return total
        await asyncio.sleep(AGAIN_S if attempt else 0)
        with suppress(*CONTENDED):  # what was filed under another day in between
            more, left = await erase_events(ledger, left, order)
            total += more
    return replace(total, running=(*total.running, *left))


async def _only(ledger: Executor, subject: Subject) -> Key:
    routes = None if subject.route is None else [subject.route]
    found = await ledger.fetch(QUERIES["find_events"], routes, subject.event_id)
    if not found:
        on = "" if subject.route is None else f" on route {subject.route!r}"
        raise NotFound(f"there is no event {subject.event_id!r}{on}")
    if len(found) > 1:
        names = ", ".join(row["route"] for row in found)
        raise CommandFailed(f"this id is on several routes ({names}): say which")
    return found[0]["route"], found[0]["event_id"]
