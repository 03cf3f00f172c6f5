"""Rejected requests: a small ring per route, in which frequent causes make room for rare ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import orjson

from gateway.base.errors import Duplicate
from gateway.ledger.connection import QUERIES, Connection, Executor, Pooled
from gateway.ledger.walk import delete_all

MOST_PER_BODY: Final = 100
"""A limit, because a captured body can be sent under any number of made-up ids."""

BATCH: Final = 1_000


class Refusal(NamedTuple):
    """A refused id, and the digest of its body as it is stored: keyed if the route encrypts."""

    route: str
    event_id: str
    digest: bytes


async def note_refusals(connection: Executor, refused: Sequence[Refusal]) -> None:
    """Store refusals, up to the limit per body."""
    columns = [list(column) for column in zip(*refused, strict=True)]
    await connection.execute(QUERIES["note_refusals"], *columns, MOST_PER_BODY)


async def forget_refusals(connection: Executor, age: timedelta) -> None:
    """Delete refusals older than any deduplication key."""
    await delete_all(connection, "forget_refusals", age, BATCH)


LOCK: Final = 0x72696E67
"""The advisory lock that lets one process at a time write: "ring" in ASCII."""

COMPARED: Final = 100
"""The number of events whose clocks are compared."""

NOWHERE: Final = ""
"""The route of requests to unknown paths."""

BAD_ITEM: Final = "bad_item"
"""The cause of an unreadable item in a batch that was accepted."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A rejected request in its stored form."""

    route: str
    at: datetime
    code: str
    cause: str
    detail: str
    shadow: bool
    method: str
    path: str
    address: str | None
    sender: str
    headers: dict[str, str] | None
    body: bytes | None
    body_bytes: int | None
    digest: bytes | None
    key_id: str | None = None
    """The key under which path, headers and body are encrypted in the body."""
    verified_by: str | None = None
    """The secret that verified it, for an item of an accepted batch or a duplicate."""
    copies: int = 1
    """The number of identical duplicates that the row stands for."""


class NoRoom(Exception):
    """Raised if a route has more unreleased rejected items than may be kept."""


class Bounds(NamedTuple):
    """The limits per route: for rejected requests, and separately for rejected items."""

    rows: int
    bytes: int


class Clocks(NamedTuple):
    """The result of comparing the clocks of verified senders with ours."""

    senders: int
    """The number of events with a signed time."""
    apart_s: float | None
    """The median by which their clocks were behind ours."""


class Chosen(NamedTuple):
    """A filter for rejected requests."""

    route: str | None = None
    code: str | None = None
    since: datetime | None = None


async def keep_rejected(
    connection: Connection | Pooled, rejected: Sequence[Rejected], bounds: Bounds
) -> int:
    """Insert rejected requests and duplicates, and delete the excess, in one commit.

    Returns how many duplicates were deleted that had been acknowledged and not released.
    """
    async with connection.transaction():
        await connection.execute(QUERIES["lock_rejected"], LOCK)
        await _insert(connection, rejected)
        routes = list({row.route for row in rejected})
        trimmed: int = await connection.fetchval(QUERIES["trim_rejected"], routes, *bounds)
        return trimmed


async def keep_items(
    connection: Connection | Pooled, items: Sequence[Rejected], bounds: Bounds
) -> None:
    """Keep rejected items of one batch, in one commit. An item that is kept already is a no-op.

    Raises NoRoom. Nothing else removes them before they are released or past their retention: the
    batch was accepted, so its sender does not send them again.
    """
    async with connection.transaction():
        await connection.execute(QUERIES["lock_rejected"], LOCK)
        if await _insert(connection, items) == 0:
            return
        [kept] = await connection.fetch(QUERIES["measure_items"], items[0].route)
        if kept["rows"] > bounds.rows or kept["bytes"] > bounds.bytes:
            raise NoRoom


async def _insert(connection: Connection | Pooled, rejected: Sequence[Rejected]) -> int:
    """Insert the rows. Return how many were written, which excludes items that are kept already."""
    merged = _merge(rejected)
    rows = [_facts(n, row) for n, row in enumerate(merged, 1)]
    inserted: int = await connection.fetchval(
        QUERIES["keep_rejected"], orjson.dumps(rows).decode(), [row.body for row in merged]
    )
    return inserted


def _merge(rejected: Sequence[Rejected]) -> list[Rejected]:
    """Merge verified requests with the same body: one statement cannot update a row twice."""
    merged: dict[object, Rejected] = {}
    for n, row in enumerate(rejected):
        is_duplicate = row.code == Duplicate.code
        is_one = row.verified_by is not None and row.digest is not None
        key = (row.route, row.digest, is_duplicate) if is_one else n
        first = merged.setdefault(key, row)
        if first is not row and is_duplicate:
            merged[key] = replace(first, copies=first.copies + row.copies)
    return list(merged.values())


def _facts(n: int, row: Rejected) -> Row:
    headers = None if row.headers is None else dict(row.headers)
    return {
        "n": n,
        "route": row.route,
        "at": row.at,
        "code": row.code,
        "cause": row.cause,
        "detail": row.detail,
        "shadow": row.shadow,
        "method": row.method,
        "path": row.path,
        "address": row.address,
        "sender": row.sender,
        "headers": headers,
        "body_bytes": row.body_bytes,
        "key_id": row.key_id,
        "verified_by": row.verified_by,
        "copies": row.copies,
        "digest": None if row.digest is None else row.digest.hex(),
        "size": len(row.body or b"") + len(orjson.dumps(headers)),
    }


async def compare_clocks(connection: Executor) -> Clocks:
    """Compare the clocks of verified senders with ours."""
    [row] = await connection.fetch(QUERIES["compare_clocks"], COMPARED)
    return Clocks(row["senders"], row["apart_s"])


async def list_rejected(
    connection: Executor, chosen: Chosen, before: int | None, limit: int
) -> list[Row]:
    """Return rejected requests, newest first."""
    rows = await connection.fetch(QUERIES["list_rejected"], *chosen, before, limit)
    return [dict(row) for row in rows]


async def group_rejected(connection: Executor, chosen: Chosen, limit: int) -> list[Row]:
    """Group rejected requests by cause, the latest first."""
    return [dict(row) for row in await connection.fetch(QUERIES["group_rejected"], *chosen, limit)]


async def count_items(connection: Executor) -> dict[str, int]:
    """Return how many rejected items wait to be released, by route."""
    rows = await connection.fetch(QUERIES["count_items"])
    return {row["route"]: row["items"] for row in rows}


async def find_rejected(connection: Executor, id: int) -> Row | None:
    """Return one rejected request with all stored fields."""
    row = await connection.fetchrow(QUERIES["find_rejected"], id)
    return None if row is None else _with_headers(dict(row))


async def hold_rejected(connection: Connection | Pooled, id: int) -> Row | None:
    """Return one rejected request, locked until the end of the transaction.

    None if another transaction holds it, or if it is gone.
    """
    row = await connection.fetchrow(QUERIES["hold_rejected"], id)
    return None if row is None else _with_headers(dict(row))


def _with_headers(row: Row) -> Row:
    return row | {"headers": None if row["headers"] is None else orjson.loads(row["headers"])}


async def next_rejected(connection: Executor, chosen: Chosen, after: int, limit: int) -> list[int]:
    """Return the ids of requests that may be released, oldest first."""
    rows = await connection.fetch(QUERIES["next_rejected"], *chosen, after, limit)
    return [row["id"] for row in rows]


async def mark_released(
    connection: Connection | Pooled,
    id: int,
    event_ids: Sequence[str],
    *,
    route: str,
    actor: str,
    reason: str | None,
) -> None:
    """Record the release: its events, the actor and the reason."""
    await connection.execute(QUERIES["mark_released"], id, list(event_ids), route, actor, reason)


async def mark_repeated(connection: Connection | Pooled, id: int, detail: str) -> None:
    """Note that a rejected request has the body of an event that was claimed before."""
    await connection.execute(QUERIES["mark_repeated"], id, detail)


async def forget_rejected(connection: Executor, age: timedelta) -> int:
    """Delete rejected requests older than `age`, and return their number."""
    return await delete_all(connection, "forget_rejected", age, BATCH)


async def count_rejected_of(connection: Executor, subject: str, route: str | None) -> int:
    """Count the rejected requests that name a subject."""
    count: int = await connection.fetchval(QUERIES["count_rejected_of"], subject, route)
    return count


async def erase_rejected(
    connection: Executor, subject: str, route: str | None, *, actor: str, reason: str
) -> int:
    """Erase the rejected requests that name a subject, and return their number."""
    count: int = await connection.fetchval(QUERIES["erase_rejected"], subject, route, actor, reason)
    return count
