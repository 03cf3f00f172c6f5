"""Refused requests: a small ring per route, in which what is many gives way to what is rare."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import orjson

from gateway.errors import Duplicate
from gateway.ledger.connection import Connection, Executor, Pooled
from gateway.ledger.forgetting import forget_all
from gateway.ledger.queries import QUERIES

LOCK: Final = 0x72696E67
"""One at a time writes: "ring" in ASCII."""

BATCH: Final = 1_000
COMPARED: Final = 100
"""Events whose clocks are looked at."""

NOWHERE: Final = ""
"""The route of requests to paths that no route has."""

BAD_ITEM: Final = "bad_item"
"""The cause of an item that cannot be read, of a batch that was accepted."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A refused request as it is kept."""

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
    """The key under which path, headers and body are sealed in the body."""
    verified_by: str | None = None
    """The secret under which it was verified: an item of an accepted batch, or a duplicate."""
    copies: int = 1
    """How many identical duplicates the row stands for."""


class NoRoom(Exception):
    """More rejected items of a route wait to be released than may be kept."""


class Bounds(NamedTuple):
    """How much of each route is kept: of rejected requests, and again of rejected items."""

    rows: int
    bytes: int


class Clocks(NamedTuple):
    """What verified events tell of our clock."""

    senders: int
    """How many of them signed a time."""
    apart_s: float | None
    """By how much theirs were behind ours, in the middle."""


class Chosen(NamedTuple):
    """Which refused requests are meant."""

    route: str | None = None
    code: str | None = None
    since: datetime | None = None


async def keep_rejected(
    connection: Connection, rejected: Sequence[Rejected], bounds: Bounds
) -> int:
    """Insert rejected requests and duplicates, and delete what is too much, in one commit.

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
    """Insert the rows, and return how many were written: no item that is kept already."""
    merged = _merge(rejected)
    rows = [_facts(n, row) for n, row in enumerate(merged, 1)]
    inserted: int = await connection.fetchval(
        QUERIES["keep_rejected"], orjson.dumps(rows).decode(), [row.body for row in merged]
    )
    return inserted


def _merge(rejected: Sequence[Rejected]) -> list[Rejected]:
    """Merge verified requests with the same bytes: one statement cannot update a row twice."""
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
    """Whether other senders agree with our clock."""
    [row] = await connection.fetch(QUERIES["compare_clocks"], COMPARED)
    return Clocks(row["senders"], row["apart_s"])


async def list_rejected(
    connection: Executor, chosen: Chosen, before: int | None, limit: int
) -> list[Row]:
    """Newest first."""
    rows = await connection.fetch(QUERIES["list_rejected"], *chosen, before, limit)
    return [dict(row) for row in rows]


async def group_rejected(connection: Executor, chosen: Chosen, limit: int) -> list[Row]:
    """By cause, the latest first."""
    return [dict(row) for row in await connection.fetch(QUERIES["group_rejected"], *chosen, limit)]


async def count_items(connection: Executor) -> dict[str, int]:
    """Return how many rejected items wait to be released, by route."""
    rows = await connection.fetch(QUERIES["count_items"])
    return {row["route"]: row["items"] for row in rows}


async def find_rejected(connection: Executor, id: int) -> Row | None:
    """One, with all that was kept of it."""
    row = await connection.fetchrow(QUERIES["find_rejected"], id)
    return None if row is None else _with_headers(dict(row))


async def hold_rejected(connection: Connection | Pooled, id: int) -> Row | None:
    """One, until the end of the transaction; None where another holds it, or it is gone."""
    row = await connection.fetchrow(QUERIES["hold_rejected"], id)
    return None if row is None else _with_headers(dict(row))


def _with_headers(row: Row) -> Row:
    return row | {"headers": None if row["headers"] is None else orjson.loads(row["headers"])}


async def next_rejected(connection: Executor, chosen: Chosen, after: int, limit: int) -> list[int]:
    """What can be asked to be released, oldest first."""
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
    """Says as what, and who wanted it."""
    await connection.execute(QUERIES["mark_released"], id, list(event_ids), route, actor, reason)


async def mark_repeated(connection: Connection | Pooled, id: int, detail: str) -> None:
    """Note that a rejected request has the bytes of an event that was claimed before."""
    await connection.execute(QUERIES["mark_repeated"], id, detail)


async def forget_rejected(connection: Executor, age: timedelta) -> int:
    """Those older than this."""
    return await forget_all(connection, "forget_rejected", age, BATCH)


async def count_rejected_of(connection: Executor, subject: str, route: str | None) -> int:
    """In how many a subject is named."""
    count: int = await connection.fetchval(QUERIES["count_rejected_of"], subject, route)
    return count


async def erase_rejected(
    connection: Executor, subject: str, route: str | None, *, actor: str, reason: str
) -> int:
    """Forgets those."""
    count: int = await connection.fetchval(QUERIES["erase_rejected"], subject, route, actor, reason)
    return count
