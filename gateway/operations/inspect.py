"""Read events, deliveries and attempts from the ledger."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg
import orjson

from gateway.config.routes import Config
from gateway.ledger.connection import QUERIES, Executor
from gateway.ledger.erasure import find_erasure
from gateway.ledger.filter import Filter
from gateway.ledger.rejected import NOWHERE
from gateway.privacy.redaction import REDACTED, WHOLE, Hide, Redaction

Row = dict[str, Any]

UNREADABLE: Final = "routes.yaml cannot be read, so that what it redacts is not known"
UNKNOWN: Final = "the route is not in routes.yaml, so that what it redacts is not known"
UNSEARCHABLE: Final = "fields of it are redacted, and cannot be found in a body that is no JSON"


def find_redaction(config: Config, route: str) -> Redaction | str | None:
    """Return the redaction of a route's events, or the reason as text if it is unknown."""
    if route == NOWHERE and not any(known.redaction for known in config.routes):
        return None
    if route not in {known.name for known in config.routes}:
        return UNKNOWN
    return config.redaction(route)


def redact_event(event: Mapping[str, Any], redaction: Redaction | str | None) -> Row:
    """Return the event without redacted values.

    `redacted` lists the redacted fields, or the reason why all of the event is redacted. If the
    payload is gone, texts that may quote it cannot be searched, and are redacted as a whole.
    """
    if redaction is None:
        return {**event, "redacted": None}
    if isinstance(redaction, str):
        return _whole(event, redaction)
    if event["body"] is None:
        fields = _fields(redaction)
        return {**event, "redacted": fields, "deliveries": _hidden(event, lambda _: REDACTED)}
    headers = event["headers"] or {}
    shown = redaction.apply(headers, event["body"])
    if shown.is_whole:
        return _whole(event, UNSEARCHABLE)
    hide = redaction.hiding(headers, event["body"])
    deliveries = _hidden(event, hide)
    return {
        **event,
        "body": shown.body,
        "redacted": _fields(redaction),
        "deliveries": [_without(delivery, hide) for delivery in deliveries],
    }


def _whole(event: Mapping[str, Any], why: str) -> Row:
    body = None if event["body"] is None else WHOLE
    deliveries = _hidden(event, lambda _: REDACTED)
    return {**event, "body": body, "redacted": why, "deliveries": deliveries}


def _fields(redaction: Redaction) -> str:
    return ", ".join(map(str, redaction.paths))


def _hidden(event: Mapping[str, Any], hide: Hide) -> list[Row]:
    """Redact the results of effects, which may quote the payload too."""
    return [
        {
            **delivery,
            "effects": [
                {**e, "result": None if e["result"] is None else hide(e["result"])}
                for e in delivery["effects"]
            ],
        }
        for delivery in event["deliveries"]
    ]


def _without(delivery: Row, hide: Hide) -> Row:
    """Redact errors stored before the field was redacted. Later ones were searched when stored."""
    return {
        **delivery,
        "error": None if delivery["error"] is None else hide(delivery["error"]),
        "attempt_log": [
            {**a, "error": None if a["error"] is None else hide(a["error"])}
            for a in delivery["attempt_log"]
        ],
    }


Mark = tuple[datetime, str, str] | tuple[None, ...]
"""Cursor: received_at, route and event_id of the last row, or empty at the start."""


FAR: Final = 20_000
"""The maximum number of events examined for one page if not all of them match."""

FAR_WITH_DELIVERIES: Final = 4_000
"""The same limit if the deliveries of each event have to be read too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventListing:
    """The matching rows, and the cursor at which the walk ended."""

    rows: list[Row]
    end: tuple[Any, ...] | None


async def list_events(
    connection: Executor,
    filter: Filter,
    mark: Mark,
    limit: int,
    *,
    status: str | None = None,
    object_id: str | None = None,
) -> EventListing:
    """List events after the cursor, newest first.

    The number of examined events is bounded. If hardly any event matches, the result has fewer rows
    than `limit`, and a cursor to continue from.
    """
    far = FAR if filter.handler is None and status is None else FAR_WITH_DELIVERIES
    if not (filter.route or filter.type or filter.handler or status):
        far = limit
    keys = await connection.fetch(
        QUERIES["list_event_keys"],
        *(filter.route, filter.type_pattern, filter.handler, status),
        *(filter.since, filter.until, filter.account, object_id),
        *(limit, max(far, limit), *mark),
    )
    matching = [key for key in keys if key["is_match"]]
    rows = await connection.fetch(
        QUERIES["read_events"],
        [key["route"] for key in matching],
        [key["event_id"] for key in matching],
    )
    # A full page ends with its last key. If that event is pruned before it is read, the cursor is
    # still right.
    ends = matching[-1:] if len(matching) == limit else [k for k in keys if not k["is_match"]]
    end = next(((k["received_at"], k["route"], k["event_id"]) for k in ends), None)
    return EventListing(rows=[_listed(row) for row in rows], end=end)


def _listed(row: asyncpg.Record) -> Row:
    shown = {name: value for name, value in row.items() if name != "is_erased"}
    return shown | {"deliveries": orjson.loads(row["deliveries"]), "note": _note(row)}


def _note(row: asyncpg.Record) -> str | None:
    if row["unverified"]:
        return "unverified: its signature was wrong"
    if row["repeat_of"] is not None:
        return f"same bytes as {row['repeat_of']}"
    if not row["payload_kept"]:
        return "erased" if row["is_erased"] else "payload pruned"
    if row["reconciled"]:
        return "fetched by reconcile"
    return "came through the spool" if row["spooled"] else None


DeadMark = tuple[datetime, int] | tuple[None, ...]
"""Cursor: finished_at and delivery_id of the last row, or empty at the start."""


async def list_dead(
    connection: Executor, filter: Filter, mark: DeadMark, limit: int
) -> EventListing:
    """List dead letters after the cursor, newest first. The number of examined rows is bounded."""
    is_plain = not (filter.route or filter.type or filter.handler or filter.account or filter.error)
    far = limit if is_plain else max(limit, FAR_WITH_DELIVERIES)
    rows = await connection.fetch(
        QUERIES["list_dead"], *filter.of_dead, limit, *mark, filter.cause, far
    )
    end = next(((r["finished_at"], r["delivery_id"]) for r in rows if r["type"] is None), None)
    return EventListing(rows=[dict(row) for row in rows if row["type"] is not None], end=end)


EffectMark = tuple[datetime, int, str] | tuple[None, ...]
"""Cursor: unknown_at, delivery_id and name of the last row, or empty at the start."""


async def list_unknown_effects(
    connection: Executor, filter: Filter, mark: EffectMark, limit: int
) -> EventListing:
    """Effects of unknown outcome, newest first, from behind a cursor."""
    far = limit if not filter.given else max(limit, FAR_WITH_DELIVERIES)
    rows = await connection.fetch(
        QUERIES["list_unknown_effects"], *filter.of_effects, limit, *mark, far
    )
    end = next(
        ((r["unknown_at"], r["delivery_id"], r["name"]) for r in rows if r["type"] is None), None
    )
    return EventListing(rows=[dict(row) for row in rows if row["type"] is not None], end=end)


async def list_audit(connection: Executor, after: int | None, limit: int) -> list[Row]:
    """List the audit log after the cursor, newest first: actions of people and of retention."""
    return [dict(row) for row in await connection.fetch(QUERIES["list_all_audit"], limit, after)]


async def find(connection: Executor, id: str, route: str | None) -> list[Row]:
    """Return the events with this id, or the event of this delivery id, with their history."""
    routes = None if route is None else [route]
    events = await connection.fetch(QUERIES["find_events"], routes, id)
    if not events and id.isdecimal() and len(id) < 19:
        delivery = await connection.fetchrow(QUERIES["find_delivery"], int(id))
        if delivery is not None:
            events = await connection.fetch(
                QUERIES["find_events"], [delivery["route"]], delivery["event_id"]
            )
    return [await _with_deliveries(connection, event) for event in events]


async def _with_deliveries(connection: Executor, event: asyncpg.Record) -> Row:
    deliveries = await connection.fetch(
        QUERIES["list_deliveries"], event["route"], event["event_id"]
    )
    ids = [d["delivery_id"] for d in deliveries]
    attempts = await connection.fetch(QUERIES["list_attempts"], ids)
    effects = await connection.fetch(QUERIES["list_effects"], ids)
    audit = await connection.fetch(QUERIES["list_audit"], ids)
    erased = await find_erasure(connection, event["route"], event["event_id"])
    headers = None if event["headers"] is None else orjson.loads(event["headers"])
    return dict(event) | {
        "headers": headers,
        "erased": None if erased is None else asdict(erased),
        "deliveries": [
            dict(d)
            | {
                "attempt_log": _of(d["delivery_id"], attempts),
                "effects": _of(d["delivery_id"], effects),
                "audit": _of(d["delivery_id"], audit),
            }
            for d in deliveries
        ],
    }


def _of(delivery_id: int, rows: list[asyncpg.Record]) -> list[Row]:
    return [dict(row) for row in rows if row["delivery_id"] == delivery_id]
