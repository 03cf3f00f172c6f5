"""What is encrypted of an event: hidden from whoever looks, shown to who has the key, on record."""

import asyncio
from collections.abc import Sequence
from typing import Any

from gateway.errors import CannotOpen, CommandFailed
from gateway.ledger.connection import Executor
from gateway.ledger.queries import QUERIES
from gateway.ledger.sealed import open_error, open_event, open_result
from gateway.operate.inspect import Row
from gateway.sealing import KeyRing


def hide(event: Row) -> Row:
    """An event as anybody may see it who may look."""
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
    """Events with all that is in them. Who asked is noted before he is answered.

    Raises CommandFailed where something cannot be opened.
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
