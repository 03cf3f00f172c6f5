"""Reads events, deliveries and attempts from the ledger."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg
import orjson

from gateway.ledger.connection import Executor
from gateway.ledger.erasure import find_erasure
from gateway.ledger.filter import Filter
from gateway.ledger.queries import QUERIES

Row = dict[str, Any]


Mark = tuple[datetime, str, str] | tuple[None, ...]
"""The last row that was seen: received_at, route, event_id; or nothing yet."""


FAR: Final = 20_000
"""How many events are looked at for one page, where not all of them match."""

FAR_WITH_DELIVERIES: Final = 4_000
"""The same where each one's deliveries must be looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What matches, and how far the walk came that did not find enough."""

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
) -> Listed:
    """Events, newest first, from behind a mark. It takes no longer where hardly any match: then
    there are fewer than asked for, and where to go on."""
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
    # Full, it ends with its last key: should that event be pruned before it is read, none is lost.
    ends = matching[-1:] if len(matching) == limit else [k for k in keys if not k["is_match"]]
    end = next(((k["received_at"], k["route"], k["event_id"]) for k in ends), None)
    return Listed(rows=[_listed(row) for row in rows], end=end)


def _listed(row: asyncpg.Record) -> Row:
    shown = {name: value for name, value in row.items() if name != "is_erased"}
    return shown | {"deliveries": orjson.loads(row["deliveries"]), "note": _note(row)}


def _note(row: asyncpg.Record) -> str | None:
    if row["unverified"]:
        return "unverified: its signature was wrong"
    if row["replay_of"] is not None:
        return f"same bytes as {row['replay_of']}"
    if not row["payload_kept"]:
        return "erased" if row["is_erased"] else "payload pruned"
    if row["reconciled"]:
        return "fetched by reconcile"
    return "came through the spool" if row["spooled"] else None


DeadMark = tuple[datetime, int] | tuple[None, ...]
"""The last row that was seen: finished_at and delivery_id; or nothing yet."""


async def list_dead(connection: Executor, filter: Filter, mark: DeadMark, limit: int) -> Listed:
    """Dead letters, newest first, from behind a mark; as many are looked at as for events."""
    is_plain = not (filter.route or filter.type or filter.handler or filter.account or filter.error)
    far = limit if is_plain else max(limit, FAR_WITH_DELIVERIES)
    rows = await connection.fetch(
        QUERIES["list_dead"], *filter.of_dead, limit, *mark, filter.cause, far
    )
    end = next(((r["finished_at"], r["delivery_id"]) for r in rows if r["type"] is None), None)
    return Listed(rows=[dict(row) for row in rows if row["type"] is not None], end=end)


EffectMark = tuple[datetime, int, str] | tuple[None, ...]
"""The last row that was seen: unknown_at, delivery_id and name; or nothing yet."""


async def list_unknown_effects(
    connection: Executor, filter: Filter, mark: EffectMark, limit: int
) -> Listed:
    """Effects of unknown outcome, newest first, from behind a cursor."""
    far = limit if not filter.given else max(limit, FAR_WITH_DELIVERIES)
    rows = await connection.fetch(
        QUERIES["list_unknown_effects"], *filter.of_effects, limit, *mark, far
    )
    end = next(
        ((r["unknown_at"], r["delivery_id"], r["name"]) for r in rows if r["type"] is None), None
    )
    return Listed(rows=[dict(row) for row in rows if row["type"] is not None], end=end)


async def list_audit(connection: Executor, after: int | None, limit: int) -> list[Row]:
    """What people and retention did, newest first, from behind a mark."""
    return [dict(row) for row in await connection.fetch(QUERIES["list_all_audit"], limit, after)]


async def find(connection: Executor, id: str, route: str | None) -> list[Row]:
    """The event with this id, or of the delivery with this id, with all that was done to it."""
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
