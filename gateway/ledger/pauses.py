"""Pauses: handlers that no worker may run for now."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self

import asyncpg

from gateway.ledger.connection import COMMAND_TIMEOUT_S, QUERIES, Executor
from gateway.ledger.deliveries import BEGINS_WITHIN

LEASES_END_S: Final = 2 * COMMAND_TIMEOUT_S
"""A lease takes some milliseconds, and its worker abandons it after the timeout of a command."""

LOOK_EVERY_S: Final = 0.01
A_FEW: Final = 50

Handler = tuple[str, str]
"""Route and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause of a handler or of a whole route."""

    route: str
    handler: str | None
    """None if the whole route is paused."""
    actor: str
    reason: str | None
    since: datetime

    @classmethod
    def of(cls, row: asyncpg.Record) -> Self:
        return cls(**dict(row))

    def holds(self, route: str, handler: str) -> bool:
        """Return whether deliveries of this handler wait because of it."""
        return self.route == route and self.handler in (None, handler)


async def pause(
    ledger: Executor, route: str, handler: str | None, *, actor: str, reason: str
) -> tuple[datetime, bool]:
    """Pause a handler. Return since when it is paused, and whether it was not paused before.

    When this returns, no delivery of it begins any more: leases in progress have ended, and the
    deliveries that they took have begun, or were handed back.
    """
    row = await ledger.fetchrow(QUERIES["pause"], route, handler or "", actor, reason)
    assert row is not None  # noqa: S101 (an upsert without a condition returns its row)
    await _leases_end(ledger)
    await _begun(ledger, route, handler)
    return row["since"], row["is_new"]


async def _leases_end(ledger: Executor) -> None:
    leasing = await _find_leasing(ledger)
    deadline = time.monotonic() + LEASES_END_S
    while leasing and time.monotonic() < deadline:
        await asyncio.sleep(LOOK_EVERY_S)
        leasing &= await _find_leasing(ledger)


async def _find_leasing(ledger: Executor) -> set[str]:
    return {row["id"] for row in await ledger.fetch(QUERIES["find_leasing"])}


async def _begun(ledger: Executor, route: str, handler: str | None) -> None:
    wait: timedelta = await ledger.fetchval(
        QUERIES["until_begun"], route, handler or "", BEGINS_WITHIN
    )
    await asyncio.sleep(wait.total_seconds())


async def resume(
    ledger: Executor, route: str, handler: str | None, *, actor: str, reason: str | None
) -> Pause | None:
    """End a pause and return it, or None if there was none."""
    row = await ledger.fetchrow(QUERIES["resume"], route, handler or "", actor, reason)
    return None if row is None else Pause.of(row)


async def list_pauses(ledger: Executor) -> list[Pause]:
    return [Pause.of(row) for row in await ledger.fetch(QUERIES["list_pauses"])]


async def find_paused(ledger: Executor, handlers: Iterable[Handler]) -> set[Handler]:
    """Return which of these handlers are paused."""
    rows = await ledger.fetch(QUERIES["find_paused"], *_columns(list(handlers)))
    return {(row["route"], row["handler"]) for row in rows}


async def list_known_handlers(ledger: Executor) -> list[Handler]:
    """Return the handlers that the ledger knows, with their routes."""
    rows = await ledger.fetch(QUERIES["list_known_handlers"])
    return [(row["route"], row["handler"]) for row in rows]


async def count_held(ledger: Executor, route: str, handler: str | None) -> tuple[int, int]:
    """Return how many deliveries run, and how many wait."""
    [row] = await ledger.fetch(QUERIES["count_held"], route, handler or "")
    return row["running"], row["waiting"]


async def find_resumed(ledger: Executor, handlers: Sequence[Handler]) -> list[int]:
    """Return the ids of a few deliveries of each handler that may run now."""
    rows = await ledger.fetch(QUERIES["find_resumed"], *_columns(handlers), A_FEW)
    return [row["id"] for row in rows]


def _columns(handlers: Sequence[Handler]) -> tuple[list[str], list[str]]:
    return [route for route, _ in handlers], [name for _, name in handlers]
