"""Re-encrypts rows of older keys under the first key, a small batch at a time."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import asyncpg
import orjson

from gateway.base.errors import SealBroken
from gateway.base.failpoints import reached
from gateway.ledger.connection import QUERIES, Connection, Executor, Pooled
from gateway.ledger.effects import rename_blinded
from gateway.ledger.encryption import (
    EncryptionKeys,
    blind_digest,
    blind_key,
    rejected_identity,
    seal_error,
    seal_event,
    seal_result,
)
from gateway.ledger.filter import CONCEALED, outline_of
from gateway.ledger.ordering import OrderingKey, advance
from gateway.ledger.walk import Counts
from gateway.privacy.encryption import DIGEST_PREFIX, KeyRing

BATCH: Final = 200
BATCH_BYTES: Final = 8 * 1024 * 1024
"""Bounds a transaction to some tens of milliseconds, and the bytes in memory at once."""

MOST_COUNTED: Final = 10_001

Marked = tuple[str, str]
START: Final[Marked] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    """The number of rows that are encrypted under a key.

    At most 10,001 of each kind are counted.
    """

    key_id: str
    events: int = 0
    attempts: int = 0
    effects: int = 0
    rejected: int = 0


PAST: Final = "past"
"""The kind of rows stored in plain text before their route was encrypted, walked by route."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekeyed(Counts):
    """The counts of a step."""

    events: int = 0
    attempts: int = 0
    effects: int = 0
    rejected: int = 0
    past: int = 0
    """Events that were stored in plain text, counted with everything that belongs to them."""
    busy: int = 0
    """Events in flight, which were skipped."""
    broken: tuple[str, ...] = ()
    """The rows that could not be decrypted, and were left unchanged."""

    @property
    def total(self) -> int:
        return self.events + self.attempts + self.effects + self.rejected + self.past


@dataclass(frozen=True, slots=True, kw_only=True)
class RekeyKind:
    """A table with encrypted rows: its statements, and the columns that identify a row."""

    table: str
    find: str
    reseal: str
    columns: tuple[str, ...]
    """The columns of the row's permanent identity."""
    read_mark: Callable[[Marked], tuple[Any, ...]]
    place: tuple[str, ...] = ()
    """The columns of the cursor, if they differ from `columns`."""
    filed: tuple[str, ...] = ()
    """Further columns that are needed to find the row: the partition key."""

    def identity(self, row: asyncpg.Record) -> tuple[str, ...]:
        if self.table == "rejected":
            return rejected_identity(row["route"], row["at"])
        return self.table, *(str(row[column]) for column in self.columns)


def _numbers(mark: Marked) -> tuple[int, int]:
    return _number(mark[0]), min(_number(mark[1]), 2**31 - 1)


def _only_number(mark: Marked) -> tuple[int]:
    return (_number(mark[0]),)


def _number_and_text(mark: Marked) -> tuple[int, str]:
    return _number(mark[0]), mark[1]


def _number(text: str) -> int:
    """Read a number of a cursor.

    Cursors come from outside: an invalid one counts as 0, before all rows.
    """
    return min(int(text[:19]), 2**63 - 1) if text.isascii() and text.isdecimal() else 0


KINDS: Final = {
    "events": RekeyKind(
        table="processed_events",
        find="find_events_under",
        reseal="reseal_events",
        columns=("route", "event_id"),
        read_mark=_only_number,
        place=("id",),
    ),
    "attempts": RekeyKind(
        table="attempts",
        find="find_attempts_under",
        reseal="reseal_attempts",
        columns=("delivery_id", "number"),
        read_mark=_numbers,
        filed=("until",),
    ),
    "effects": RekeyKind(
        table="effects",
        find="find_effects_under",
        reseal="reseal_effects",
        columns=("delivery_id", "name"),
        read_mark=_number_and_text,
    ),
    "rejected": RekeyKind(
        table="rejected",
        find="find_rejected_under",
        reseal="reseal_rejected",
        columns=("id",),
        read_mark=_only_number,
    ),
}


async def count_keys(ledger: Executor) -> list[KeyUse]:
    """Count the rows of each key in use."""
    return [KeyUse(**dict(row)) for row in await ledger.fetch(QUERIES["count_keys"], MOST_COUNTED)]


async def reseal(
    ledger: Connection | Pooled,
    ring: KeyRing,
    name: str,
    key_id: str,
    mark: Marked,
    *,
    route: str | None,
    most: int,
) -> tuple[Rekeyed, Marked | None]:
    """Re-encrypt the next rows of a kind under a key, and write them in one commit.

    Also returns the cursor after them, or None at the end. They are read before, without a lock:
    rows that another transaction has changed in the meantime are skipped.
    """
    kind = KINDS[name]
    rows = await ledger.fetch(
        QUERIES[kind.find], key_id, *kind.read_mark(mark), route, most, BATCH_BYTES
    )
    if not rows:
        return Rekeyed(), None
    opened, broken = await asyncio.to_thread(_seal_anew, ring, kind, rows)
    reached("rekey.sealed")
    written = await ledger.fetch(
        QUERIES[kind.reseal],
        *([row[column] for row, _ in opened] for column in (*kind.columns, *kind.filed)),
        [sealed for _, sealed in opened],
        key_id,
        ring.first,
    )
    reached("rekey.written")
    first, *rest = (str(rows[-1][column]) for column in kind.place or kind.columns)
    return Rekeyed(**{name: len(written)}, broken=tuple(broken)), (first, "".join(rest))


def _seal_anew(
    ring: KeyRing, kind: RekeyKind, rows: Sequence[asyncpg.Record]
) -> tuple[list[tuple[asyncpg.Record, bytes]], list[str]]:
    opened: list[tuple[asyncpg.Record, bytes]] = []
    broken: list[str] = []
    for row in rows:
        identity = kind.identity(row)
        try:
            opened.append((row, ring.seal(ring.open(row["sealed"], identity), identity)))
        except SealBroken:
            broken.append(" ".join(identity))
    return opened, broken


LOOKED_AT: Final = 2000
"""The number of events that are read per step. It is large, because most of a route may be
encrypted already."""

Rows = Sequence[asyncpg.Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """Some events of a route, and their related rows."""

    events: Rows
    deliveries: Rows
    attempts: Rows
    effects: Rows
    once_keys: Rows


async def seal_past(
    ledger: Connection | Pooled, encryption: EncryptionKeys, route: str, mark: Marked, *, most: int
) -> tuple[Rekeyed, Marked | None]:
    """Encrypt the next events of a route in one commit.

    Also returns the cursor after them, or None at the end.
    """
    rows = await ledger.fetch(QUERIES["find_past"], route, mark[1], LOOKED_AT)
    if not rows:
        return Rekeyed(), None
    chosen, last = _choose(rows, most)
    sealed, turns = 0, list[OrderingKey]()
    if chosen:
        async with ledger.transaction():
            free = await _hold(ledger, route, chosen)
            past = await _read(ledger, route, free)
            turns = await _write(ledger, encryption, route, past)
            sealed = len(past.events)
            reached("rekey.past")
        await advance(ledger, turns)
    return Rekeyed(past=sealed, busy=len(chosen) - sealed), (route, last)


def _choose(rows: Rows, most: int) -> tuple[list[str], str]:
    """Return the unencrypted events, up to the byte limit, and the id of the last event read."""
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
    """Lock the events.

    Return those without a running delivery that no other transaction has locked.
    """
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


async def _write(
    ledger: Connection | Pooled, encryption: EncryptionKeys, route: str, past: _Past
) -> list[OrderingKey]:
    """Write the encrypted rows. Return the ordering keys that have to be advanced."""
    ring = encryption.ring
    payloads = await asyncio.to_thread(_payloads, encryption, route, past.events)
    await ledger.fetch(QUERIES["seal_past_events"], route, *_events(encryption, route, past.events))
    await ledger.execute(QUERIES["seal_past_payloads"], *payloads, ring.first)
    changed, turns = _deliveries(encryption, route, past.deliveries)
    await ledger.execute(QUERIES["seal_past_deliveries"], *changed)
    await ledger.execute(
        QUERIES["seal_past_attempts"], *_attempts(encryption, past.attempts), ring.first
    )
    await ledger.execute(
        QUERIES["seal_past_effects"], *_effects(encryption, route, past), ring.first
    )
    keys = [
        (row["handler"], row["key"], blind_key(ring, route, row["handler"], row["key"]))
        for row in past.once_keys
    ]
    await ledger.execute(QUERIES["move_once_keys"], route, *_columns(keys, 3))
    return turns


def _events(encryption: EncryptionKeys, route: str, events: Rows) -> tuple[list[Any], ...]:
    """Return ids, keyed digests and guards."""
    ring, rows = encryption.ring, list[tuple[str, bytes, bytes | None]]()
    for row in events:
        guard = None if row["guard"] is None else blind_digest(ring, route, row["guard"])
        rows.append((row["event_id"], blind_digest(ring, route, row["digest"]), guard))
    return _columns(rows, 3)


def _payloads(encryption: EncryptionKeys, route: str, events: Rows) -> tuple[list[Any], ...]:
    """Return the payloads' ids and days, and the encrypted content."""
    rows = list[tuple[int, date, bytes]]()
    for row in events:
        if row["body"] is not None:
            headers = orjson.loads(row["headers"] or "{}")
            sealed = seal_event(encryption.ring, route, row["event_id"], headers, row["body"])
            rows.append((row["payload_id"], row["payload_until"], sealed))
    return _columns(rows, 3)


def _deliveries(
    encryption: EncryptionKeys, route: str, rows: Rows
) -> tuple[tuple[list[Any], ...], list[OrderingKey]]:
    changed, turns = list[tuple[int, str | None, str | None]](), list[OrderingKey]()
    for row in rows:
        key, error = row["order_key"], row["error"]
        if key is not None and not key.startswith(DIGEST_PREFIX):
            blind = blind_key(encryption.ring, route, row["handler"], key)
            turns += [
                OrderingKey(route, row["handler"], key),
                OrderingKey(route, row["handler"], blind),
            ]
            key = blind
        changed.append((row["id"], None if error is None else _outlined(error), key))
    return _columns(changed, 3), turns


def _attempts(encryption: EncryptionKeys, rows: Rows) -> tuple[list[Any], ...]:
    plain = [row for row in rows if row["error"] is not None and row["sealed"] is None]
    return _columns(
        [
            (
                row["delivery_id"],
                row["number"],
                row["until"],
                outline_of(row["error"]),
                seal_error(encryption.ring, row["delivery_id"], row["number"], row["error"]),
            )
            for row in plain
        ],
        5,
    )


def _effects(encryption: EncryptionKeys, route: str, past: _Past) -> tuple[list[Any], ...]:
    """Return effects with encrypted results, and with names that no longer contain a plain key."""
    handlers = {row["id"]: row["handler"] for row in past.deliveries}
    changed = list[tuple[int, str, str, str | None, bytes | None]]()
    for row in past.effects:
        id, name, key, sealed = row["delivery_id"], row["name"], row["key"], None
        new_name, new_key = name, key
        if key is not None and not key.startswith(DIGEST_PREFIX):
            new_name, new_key = rename_blinded(encryption, route, handlers[id], name, key)
        if row["result"] is not None and row["sealed"] is None:
            sealed = seal_result(encryption.ring, id, new_name, row["result"].encode())
        if sealed is not None or new_name != name:
            changed.append((id, name, new_name, new_key, sealed))
    return _columns(changed, 5)


def _outlined(error: str) -> str:
    return error if error.endswith(CONCEALED) else outline_of(error)


def _columns(rows: Sequence[Sequence[Any]], count: int) -> tuple[list[Any], ...]:
    return tuple([row[n] for row in rows] for n in range(count))
