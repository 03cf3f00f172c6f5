"""Reads events, deliveries and attempts from the ledger."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg
import orjson

from gateway.ledger.connection import Connection
from gateway.ledger.queries import QUERIES

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which rows a person wants to see."""

    route: str | None = None
    type: str | None = None
    handler: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        pattern = None if self.type is None else like(self.type)
        return self.route, pattern, self.handler, self.since, self.until, self.limit


def like(glob: str) -> str:
    """A glob (`invoice.*`) as a LIKE pattern."""
    escaped = glob.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%").replace("?", "_")


async def list_events(connection: Connection, filter: Filter) -> list[Row]:
    """Events, newest first."""
    rows = await connection.fetch(QUERIES["list_events"], *filter.arguments)
    return [
        dict(row) | {"deliveries": orjson.loads(row["deliveries"]), "note": _note(row)}
        for row in rows
    ]


def _note(row: asyncpg.Record) -> str | None:
    if row["replay_of"] is not None:
        return f"same bytes as {row['replay_of']}"
    if not row["payload_kept"]:
        return "payload pruned"
    return "came through the spool" if row["spooled"] else None


async def list_dead(connection: Connection, filter: Filter) -> list[Row]:
    """Dead letters, newest first."""
    rows = await connection.fetch(QUERIES["list_dead"], *filter.arguments)
    return [dict(row) for row in rows]


async def find(connection: Connection, id: str, route: str | None) -> list[Row]:
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


async def _with_deliveries(connection: Connection, event: asyncpg.Record) -> Row:
    deliveries = await connection.fetch(
        QUERIES["list_deliveries"], event["route"], event["event_id"]
    )
    ids = [d["delivery_id"] for d in deliveries]
    attempts = await connection.fetch(QUERIES["list_attempts"], ids)
    effects = await connection.fetch(QUERIES["list_effects"], ids)
    audit = await connection.fetch(QUERIES["list_audit"], ids)
    headers = None if event["headers"] is None else orjson.loads(event["headers"])
    return dict(event) | {
        "headers": headers,
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
