"""Encrypted events: which keys are used, and showing one decrypted."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict

from gateway.base.errors import CannotOpen, CommandFailed
from gateway.base.units import format_count
from gateway.ledger.connection import QUERIES, Executor
from gateway.ledger.encryption import open_error, open_event, open_result
from gateway.ledger.rekeying import MOST_COUNTED, KeyUse
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
