"""Puts what is kept under an older key under the first one, a small batch at a time."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from gateway.errors import SealBroken
from gateway.failpoints import reached
from gateway.ledger.connection import Connection, Executor, Pooled
from gateway.ledger.queries import QUERIES
from gateway.ledger.sealed import rejected_identity
from gateway.sealing import KeyRing

BATCH: Final = 200
BATCH_BYTES: Final = 8 * 1024 * 1024
"""A transaction of some tens of milliseconds, and what of it is in memory at once."""

MOST_COUNTED: Final = 10_001

Marked = tuple[str, str]
START: Final[Marked] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    """How much is kept under a key; of each kind at most 10,001 are counted."""

    key_id: str
    events: int = 0
    attempts: int = 0
    effects: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resealed:
    """What came of a batch."""

    count: int = 0
    broken: tuple[str, ...] = ()
    """What could not be opened, and was left as it is."""
    mark: Marked | None = None
    """Behind it there may be more; None where there is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A table that holds something sealed: how it is found, known and written."""

    table: str
    find: str
    reseal: str
    columns: tuple[str, ...]
    """What it is known by, for ever."""
    read_mark: Callable[[Marked], tuple[Any, ...]]
    place: tuple[str, ...] = ()
    """Where it is found, where that is not what it is known by."""
    filed: tuple[str, ...] = ()
    """Under what it is filed beside that."""

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
    """Places come from outside: what is no number is before them all."""
    return min(int(text[:19]), 2**63 - 1) if text.isascii() and text.isdecimal() else 0


KINDS: Final = {
    "events": Kind(
        table="processed_events",
        find="find_events_under",
        reseal="reseal_events",
        columns=("route", "event_id"),
        read_mark=_only_number,
        place=("id",),
    ),
    "attempts": Kind(
        table="attempts",
        find="find_attempts_under",
        reseal="reseal_attempts",
        columns=("delivery_id", "number"),
        read_mark=_numbers,
        filed=("until",),
    ),
    "effects": Kind(
        table="effects",
        find="find_effects_under",
        reseal="reseal_effects",
        columns=("delivery_id", "name"),
        read_mark=_number_and_text,
    ),
    "rejected": Kind(
        table="rejected",
        find="find_rejected_under",
        reseal="reseal_rejected",
        columns=("id",),
        read_mark=_only_number,
    ),
}


async def count_keys(ledger: Executor) -> list[KeyUse]:
    """The keys under which something is kept."""
    return [KeyUse(**dict(row)) for row in await ledger.fetch(QUERIES["count_keys"], MOST_COUNTED)]


async def reseal(
    ledger: Connection | Pooled,
    ring: KeyRing,
    kind: Kind,
    key_id: str,
    mark: Marked,
    *,
    route: str | None,
    most: int,
) -> Resealed:
    """The next ones under a key, sealed anew and written in one commit.

    They are read before, without a lock: what another has changed meanwhile is left to him.
    """
    limits = (most, BATCH_BYTES) if kind is KINDS["events"] else (most,)
    rows = await ledger.fetch(QUERIES[kind.find], key_id, *kind.read_mark(mark), route, *limits)
    if not rows:
        return Resealed()
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
    return Resealed(count=len(written), broken=tuple(broken), mark=(first, "".join(rest)))


def _seal_anew(
    ring: KeyRing, kind: Kind, rows: Sequence[asyncpg.Record]
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
