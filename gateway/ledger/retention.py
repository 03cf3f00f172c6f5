"""Forgets what a route no longer keeps, in small bounded steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import asyncpg

from gateway.ledger.connection import Pooled
from gateway.ledger.queries import QUERIES
from gateway.model import Retention

LOCK: Final = 0x7072756E65
"""One worker at a time prunes: "prune" in ASCII."""

BATCH: Final = 500
START: Final = (datetime(1970, 1, 1, tzinfo=UTC), "", "")

Cursor = tuple[datetime, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What one step forgot."""

    keys: int = 0
    payloads: int = 0
    dead: int = 0
    looked_at: int = 0


class Pruner:
    """Walks the events from the oldest, a batch a step, and starts over at the end."""

    def __init__(self, retention: Mapping[str, Retention]) -> None:
        self._retention = retention
        self._cursor: Cursor = START

    async def step(self, connection: Pooled) -> Pruned:
        """One bounded round; does nothing while another worker is at it."""
        if not self._retention:
            return Pruned()
        async with connection.transaction():
            if not await connection.fetchval("select pg_try_advisory_xact_lock($1)", LOCK):
                return Pruned()
            dead = await self._expire_dead(connection)
            candidates = await self._candidates(connection)
            keys, payloads = self._sort(candidates, await connection.fetchval("select now()"))
            return Pruned(
                keys=await _prune(connection, "prune_keys", keys),
                payloads=await _prune(connection, "prune_payloads", payloads),
                dead=dead,
                looked_at=len(candidates),
            )

    async def _expire_dead(self, connection: Pooled) -> int:
        counts = [
            await connection.fetchval(QUERIES["expire_dead"], route, kept.dead, BATCH)
            for route, kept in self._retention.items()
        ]
        return sum(counts)

    async def _candidates(self, connection: Pooled) -> list[asyncpg.Record]:
        shortest = min(min(kept.key, kept.payload) for kept in self._retention.values())
        cutoff = await connection.fetchval("select now() - $1::interval", shortest)
        rows = await connection.fetch(QUERIES["prune_candidates"], cutoff, *self._cursor, BATCH)
        last = rows[-1] if len(rows) == BATCH else None
        self._cursor = (last["received_at"], last["route"], last["event_id"]) if last else START
        return rows

    def _sort(
        self, candidates: list[asyncpg.Record], now: datetime
    ) -> tuple[list[asyncpg.Record], list[asyncpg.Record]]:
        """Which of them lose their key, and which only their payload."""
        keys, payloads = [], []
        for row in candidates:
            kept = self._retention.get(row["route"])
            if kept is None or row["ended_at"] is None:
                continue
            if row["ended_at"] < now - kept.key:
                keys.append(row)
            elif row["has_body"] and row["ended_at"] < now - kept.payload:
                payloads.append(row)
        return keys, payloads


async def _prune(connection: Pooled, query: str, rows: list[asyncpg.Record]) -> int:
    if not rows:
        return 0
    locked = await connection.fetch(QUERIES["lock_events"], *_columns(rows))
    count: int = await connection.fetchval(QUERIES[query], *_columns(locked))
    return count


def _columns(rows: list[asyncpg.Record]) -> tuple[list[str], list[str]]:
    return [row["route"] for row in rows], [row["event_id"] for row in rows]
