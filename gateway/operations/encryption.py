"""Encrypted events: which keys are used, showing one, and rewriting all under another key."""

import asyncio
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import asyncpg
from typing_extensions import TypedDict

from gateway.base.errors import CannotOpen, CommandFailed
from gateway.base.units import format_count
from gateway.ledger.connection import CONTENDED, QUERIES, Connection, Executor, Pooled
from gateway.ledger.encryption import EncryptionKeys, open_error, open_event, open_result
from gateway.ledger.rekeying import (
    BATCH,
    KINDS,
    MOST_COUNTED,
    START,
    KeyUse,
    Marked,
    Resealed,
    count_keys,
    reseal,
    seal_past,
)
from gateway.operations.inspect import Row
from gateway.privacy.encryption import KeyRing


class KeyState(TypedDict):
    """An encryption key, with the number of rows under it."""

    key_id: str
    events: int
    """Number of events under this key. This and the following counts stop at 10,001."""
    attempts: int
    effects: int
    rejected: int
    spooled: int
    """Number of events in the spool of the machine that answers."""
    encrypts: bool | None
    """Whether it is the first of `keys`; null if the process that answers has no keys."""
    at_hand: bool | None
    """Whether it is among `keys`; null if the process that answers has no keys."""


def key_states(
    uses: Iterable[KeyUse], ring: KeyRing | None, spooled: Mapping[str, int]
) -> list[KeyState]:
    """Return every key that is in use or configured, starting with the one that encrypts."""
    used = {use.key_id: use for use in uses}
    ours = () if ring is None else ring.ids
    others = sorted(key for key in {*used, *spooled} if key not in ours)
    return [_state(used.get(key, KeyUse(key_id=key)), ring, spooled) for key in (*ours, *others)]


def _state(use: KeyUse, ring: KeyRing | None, spooled: Mapping[str, int]) -> KeyState:
    return {
        "key_id": use.key_id,
        "events": use.events,
        "attempts": use.attempts,
        "effects": use.effects,
        "rejected": use.rejected,
        "spooled": spooled.get(use.key_id, 0),
        "encrypts": None if ring is None else ring.ids[:1] == (use.key_id,),
        "at_hand": None if ring is None else use.key_id in ring.ids,
    }


def describe_key(state: KeyState) -> str:
    """Format a key in one line: its id, its role and its counts."""
    role = {True: ", which encrypts", False: "", None: ""}[state["encrypts"]]
    if state["at_hand"] is False:
        role = ", which is not among `keys`"
    counts = ("events", "event"), ("attempts", "error"), ("effects", "result")
    told = [_count(state[name], word) for name, word in counts]  # type: ignore[literal-required]
    if state["rejected"]:
        told.append(format_count(state["rejected"], "refused request"))
    spooled = f", {state['spooled']:,} in the spool" if state["spooled"] else ""
    return f"{state['key_id']}{role}: {', '.join(told)}{spooled}"


def _count(number: int, word: str) -> str:
    if number >= MOST_COUNTED:
        return f"{MOST_COUNTED - 1:,}+ {word}s"
    return format_count(number, word)


def in_use(state: KeyState) -> int:
    """Return how many rows would be unreadable without the key."""
    kept = state["events"] + state["attempts"] + state["effects"] + state["rejected"]
    return kept + state["spooled"]


def hide(event: Row) -> Row:
    """Return the event without its encrypted contents."""
    is_sealed = event["key_id"] is not None
    return event | {
        "key_id": event["key_id"] or None,
        "encrypted": is_sealed and event["body"] is not None,
        "headers": None if is_sealed else event["headers"],
        "body": None if is_sealed else event["body"],
        "deliveries": [_hide_delivery(delivery) for delivery in event["deliveries"]],
    }


def _hide_delivery(delivery: Row) -> Row:
    return delivery | {
        "attempt_log": [_without_seal(attempt) for attempt in delivery["attempt_log"]],
        "effects": [_without_seal(effect) for effect in delivery["effects"]],
    }


def _without_seal(row: Row) -> Row:
    shown = {name: value for name, value in row.items() if name != "sealed"}
    return shown | {"encrypted": row["sealed"] is not None}


async def reveal(
    ledger: Executor, events: Sequence[Row], ring: KeyRing, *, actor: str, reason: str | None
) -> list[Row]:
    """Return the events with decrypted contents. The audit entry is written before they are
    returned.

    Raises CommandFailed if something cannot be decrypted.
    """
    opened = [await asyncio.to_thread(_open, event, ring) for event in events]
    sealed = [event for event in opened if event["encrypted"] or _has_sealed(event)]
    if sealed:
        routes = [event["route"] for event in sealed]
        ids = [event["event_id"] for event in sealed]
        await ledger.execute(QUERIES["note_reveal"], actor, reason, routes, ids)
    return opened


def _has_sealed(event: Row) -> bool:
    return any(
        row["encrypted"]
        for delivery in event["deliveries"]
        for row in (*delivery["attempt_log"], *delivery["effects"])
    )


def _open(event: Row, ring: KeyRing) -> Row:
    shown = hide(event)
    try:
        if shown["encrypted"]:
            route, id, sealed = event["route"], event["event_id"], event["body"]
            shown["headers"], shown["body"] = open_event(ring, route, id, sealed)
        for delivery, raw in zip(shown["deliveries"], event["deliveries"], strict=True):
            for attempt, kept in zip(delivery["attempt_log"], raw["attempt_log"], strict=True):
                if kept["sealed"] is not None:
                    attempt["error"] = open_error(ring, *_attempt(kept))
            for effect, kept in zip(delivery["effects"], raw["effects"], strict=True):
                if kept["sealed"] is not None:
                    effect["result"] = open_result(ring, *_effect(kept)).decode()
    except CannotOpen as error:
        raise CommandFailed(f"event {event['event_id']} on {event['route']}: {error}") from error
    return shown


def _attempt(row: Row) -> tuple[Any, ...]:
    return row["delivery_id"], row["number"], row["sealed"]


def _effect(row: Row) -> tuple[Any, ...]:
    return row["delivery_id"], row["name"], row["sealed"]


PIECE_S: Final = 2.0
"""Time limit of one piece, so that no HTTP request runs for minutes."""

TRIES: Final = 20
PAST: Final = "past"
"""The kind of rows stored in plain text before their route was encrypted, walked by route."""

ORDER: Final = (*KINDS, PAST)


class RekeyCursor(NamedTuple):
    """Cursor: the kind of rows, the key or route, and the last row."""

    kind: str
    name: str
    mark: Marked = START


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekeyed:
    """The result of one piece."""

    events: int = 0
    attempts: int = 0
    effects: int = 0
    rejected: int = 0
    past: int = 0
    """Events that were stored in plain text, counted with everything that belongs to them."""
    busy: int = 0
    """Events in flight, which were skipped."""
    broken: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return self.events + self.attempts + self.effects + self.rejected + self.past

    def plus(self, kind: str, done: Resealed, busy: int = 0) -> "Rekeyed":
        counts = {name: getattr(self, name) + (done.count if name == kind else 0) for name in ORDER}
        return Rekeyed(**counts, busy=self.busy + busy, broken=self.broken + done.broken)


async def rekey(
    ledger: Connection | Pooled,
    encryption: EncryptionKeys,
    place: RekeyCursor | None,
    *,
    route: str | None = None,
    limit: int | None = None,
) -> tuple[Rekeyed, RekeyCursor | None]:
    """Continue from the cursor. Returns the next one, or None at the end.

    Every batch is one commit, so it is safe to stop anywhere and to start again. Rows under a key
    that is not in the ring are left unchanged.
    """
    total, began_s = Rekeyed(), time.monotonic()
    if not encryption.ring.ids:
        raise CommandFailed("there are no keys: set `keys` in routes.yaml")
    tasks = await _tasks(ledger, encryption, route)
    here = _at(tasks, place)
    while here is not None:
        most = BATCH if limit is None else min(BATCH, limit - total.total)
        done, busy = await _patiently(ledger, encryption, here, route, most)
        total = total.plus(here.kind, done, busy)
        here = _behind(tasks, here) if done.mark is None else here._replace(mark=done.mark)
        if time.monotonic() - began_s > PIECE_S or (limit is not None and total.total >= limit):
            break
    return total, here


async def _tasks(
    ledger: Connection | Pooled, encryption: EncryptionKeys, route: str | None
) -> list[RekeyCursor]:
    """Return the starting points of all walks, in order."""
    ring = encryption.ring
    old = [use.key_id for use in await count_keys(ledger) if use.key_id != ring.first]
    routes = sorted(encryption.routes if route is None else encryption.routes & {route})
    return [
        *(RekeyCursor(kind, key) for kind in KINDS for key in old if key in ring.ids),
        *(RekeyCursor(PAST, name) for name in routes),
    ]


def _at(tasks: Sequence[RekeyCursor], place: RekeyCursor | None) -> RekeyCursor | None:
    """Return the cursor itself if its walk exists, or else the start of the next walk."""
    if place is None:
        return tasks[0] if tasks else None
    if any((place.kind, place.name) == (task.kind, task.name) for task in tasks):
        return place
    return _behind(tasks, place)


def _behind(tasks: Sequence[RekeyCursor], place: RekeyCursor) -> RekeyCursor | None:
    return next((task for task in tasks if _rank(task) > _rank(place)), None)


def _rank(place: RekeyCursor) -> tuple[int, str]:
    return ORDER.index(place.kind), place.name


async def _patiently(
    ledger: Connection | Pooled,
    encryption: EncryptionKeys,
    place: RekeyCursor,
    route: str | None,
    most: int,
) -> tuple[Resealed, int]:
    for _ in range(TRIES):
        with suppress(*CONTENDED, asyncpg.UniqueViolationError):
            if place.kind == PAST:
                return await seal_past(ledger, encryption, place.name, place.mark, most=most)
            kind = KINDS[place.kind]
            done = await reseal(
                ledger, encryption.ring, kind, place.name, place.mark, route=route, most=most
            )
            return done, 0
        await asyncio.sleep(random.uniform(0.01, 0.1))  # noqa: S311 (spreads out the retries)
    raise CommandFailed("the rekey gets in the way of others again and again: try it later")
