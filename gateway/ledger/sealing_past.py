"""Seals what was stored as it came, before its route was encrypted, with all that belongs to it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import asyncpg
import orjson

from gateway.failpoints import reached
from gateway.ledger.connection import Connection, Pooled
from gateway.ledger.outline import CONCEALED, outline_of
from gateway.ledger.queries import QUERIES
from gateway.ledger.rekeying import BATCH_BYTES, Marked, Resealed
from gateway.ledger.sealed import (
    Vault,
    blind_digest,
    blind_key,
    seal_error,
    seal_event,
    seal_result,
)
from gateway.ledger.turns import Turn, advance
from gateway.sealing import DIGEST_PREFIX

LOOKED_AT: Final = 2000
"""Most of a route may be sealed already."""

Rows = Sequence[asyncpg.Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """Some events of a route, and what belongs to them."""

    events: Rows
    deliveries: Rows
    attempts: Rows
    effects: Rows
    once_keys: Rows


async def seal_past(
    ledger: Connection | Pooled, vault: Vault, route: str, mark: Marked, *, most: int
) -> tuple[Resealed, int]:
    """The next events of a route in one commit, and how many were left because they run."""
    rows = await ledger.fetch(QUERIES["find_past"], route, mark[1], LOOKED_AT)
    if not rows:
        return Resealed(), 0
    chosen, last = _choose(rows, most)
    sealed, turns = 0, list[Turn]()
    if chosen:
        async with ledger.transaction():
            free = await _hold(ledger, route, chosen)
            past = await _read(ledger, route, free)
            turns = await _write(ledger, vault, route, past)
            sealed = len(past.events)
            reached("rekey.past")
        await advance(ledger, turns)
    return Resealed(count=sealed, mark=(route, last)), len(chosen) - sealed


def _choose(rows: Rows, most: int) -> tuple[list[str], str]:
    """Those that are not sealed, as many as come to so many bytes, and how far that is."""
    chosen: list[str] = []
    size = 0
    for row in rows:
        if not row["is_past"]:
            continue
        if len(chosen) == most or (chosen and size + row["size"] > BATCH_BYTES):
            return chosen, chosen[-1]
        chosen.append(row["event_id"])
        size += row["size"]
    return chosen, rows[-1]["event_id"]


async def _hold(ledger: Connection | Pooled, route: str, event_ids: list[str]) -> list[str]:
    """Those of which nothing runs, and that nobody else is at."""
    routes = [route] * len(event_ids)
    found = await ledger.fetch(QUERIES["hold_subject"], routes, event_ids)
    held = [row["event_id"] for row in found if row["is_held"]]
    rows = await ledger.fetch(QUERIES["hold_deliveries"], [route] * len(held), held)
    ids = {row["id"] for row in rows}
    deliveries = await ledger.fetch(QUERIES["read_past_deliveries"], route, held)
    busy = {d["event_id"] for d in deliveries if d["id"] not in ids or d["status"] == "running"}
    return [event_id for event_id in held if event_id not in busy]


async def _read(ledger: Connection | Pooled, route: str, event_ids: list[str]) -> _Past:
    deliveries = await ledger.fetch(QUERIES["read_past_deliveries"], route, event_ids)
    ids = [row["id"] for row in deliveries]
    return _Past(
        events=await ledger.fetch(QUERIES["read_past"], route, event_ids),
        deliveries=deliveries,
        attempts=await ledger.fetch(QUERIES["read_past_attempts"], ids),
        effects=await ledger.fetch(QUERIES["list_effects"], ids),
        once_keys=await ledger.fetch(QUERIES["list_once_keys"], ids),
    )


async def _write(ledger: Connection | Pooled, vault: Vault, route: str, past: _Past) -> list[Turn]:
    """Returns the turns that have to be given anew."""
    ring = vault.ring
    payloads = await asyncio.to_thread(_payloads, vault, route, past.events)
    await ledger.fetch(QUERIES["seal_past_events"], route, *_events(vault, route, past.events))
    await ledger.execute(QUERIES["seal_past_payloads"], *payloads, ring.first)
    changed, turns = _deliveries(vault, route, past.deliveries)
    await ledger.execute(QUERIES["seal_past_deliveries"], *changed)
    await ledger.execute(
        QUERIES["seal_past_attempts"], *_attempts(vault, past.attempts), ring.first
    )
    await ledger.execute(QUERIES["seal_past_effects"], *_effects(vault, past.effects), ring.first)
    keys = [
        (row["handler"], row["key"], blind_key(ring, route, row["handler"], row["key"]))
        for row in past.once_keys
    ]
    await ledger.execute(QUERIES["move_once_keys"], route, *_columns(keys, 3))
    return turns


def _events(vault: Vault, route: str, events: Rows) -> tuple[list[Any], ...]:
    """Ids, keyed digests and guards."""
    ring, rows = vault.ring, list[tuple[str, bytes, bytes | None]]()
    for row in events:
        guard = None if row["guard"] is None else blind_digest(ring, route, row["guard"])
        rows.append((row["event_id"], blind_digest(ring, route, row["digest"]), guard))
    return _columns(rows, 3)


def _payloads(vault: Vault, route: str, events: Rows) -> tuple[list[Any], ...]:
    """Where they are filed, and what came, sealed."""
    rows = list[tuple[int, date, bytes]]()
    for row in events:
        if row["body"] is not None:
            headers = orjson.loads(row["headers"] or "{}")
            sealed = seal_event(vault.ring, route, row["event_id"], headers, row["body"])
            rows.append((row["payload_id"], row["payload_until"], sealed))
    return _columns(rows, 3)


def _deliveries(vault: Vault, route: str, rows: Rows) -> tuple[tuple[list[Any], ...], list[Turn]]:
    changed, turns = list[tuple[int, str | None, str | None]](), list[Turn]()
    for row in rows:
        key, error = row["order_key"], row["error"]
        if key is not None and not key.startswith(DIGEST_PREFIX):
            blind = blind_key(vault.ring, route, row["handler"], key)
            turns += [Turn(route, row["handler"], key), Turn(route, row["handler"], blind)]
            key = blind
        changed.append((row["id"], None if error is None else _outlined(error), key))
    return _columns(changed, 3), turns


def _attempts(vault: Vault, rows: Rows) -> tuple[list[Any], ...]:
    plain = [row for row in rows if row["error"] is not None and row["sealed"] is None]
    return _columns(
        [
            (
                row["delivery_id"],
                row["number"],
                row["until"],
                outline_of(row["error"]),
                seal_error(vault.ring, row["delivery_id"], row["number"], row["error"]),
            )
            for row in plain
        ],
        5,
    )


def _effects(vault: Vault, rows: Rows) -> tuple[list[Any], ...]:
    plain = [row for row in rows if row["result"] is not None and row["sealed"] is None]
    sealed = [
        (id, name, seal_result(vault.ring, id, name, result.encode()))
        for id, name, result in ((r["delivery_id"], r["name"], r["result"]) for r in plain)
    ]
    return _columns(sealed, 3)


def _outlined(error: str) -> str:
    return error if error.endswith(CONCEALED) else outline_of(error)


def _columns(rows: Sequence[Sequence[Any]], count: int) -> tuple[list[Any], ...]:
    return tuple([row[n] for row in rows] for n in range(count))
