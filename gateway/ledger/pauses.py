"""Pauses: handlers that no worker is to run for now."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self

import asyncpg

from gateway.ledger.connection import COMMAND_TIMEOUT_S, Executor
from gateway.ledger.deliveries import BEGINS_WITHIN
from gateway.ledger.queries import QUERIES

LEASES_END_S: Final = 2 * COMMAND_TIMEOUT_S
"""A lease takes some milliseconds, and its worker gives it up after the time-out of a command."""

LOOK_EVERY_S: Final = 0.01
A_FEW: Final = 50

Handler = tuple[str, str]
"""Route and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One order to let something wait."""

    route: str
    handler: str | None
    """None: all of the route."""
    actor: str
    reason: str | None
    since: datetime

    @classmethod
    def of(cls, row: asyncpg.Record) -> Self:
        return cls(**dict(row))

    def holds(self, route: str, handler: str) -> bool:
        """Whether deliveries of this handler wait because of it."""
        return self.route == route and self.handler in (None, handler)


async def pause(
    ledger: Executor, route: str, handler: str | None, *, actor: str, reason: str
) -> tuple[datetime, bool]:
    """Since when it is paused, and whether it was not before.

    When this returns, no delivery of it is begun any more: leases that were under way have ended,
    and what they took has begun, or was handed back.
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
    """The pause that this ended; None where there was none."""
    row = await ledger.fetchrow(QUERIES["resume"], route, handler or "", actor, reason)
    return None if row is None else Pause.of(row)


async def list_pauses(ledger: Executor) -> list[Pause]:
    """What is paused."""
    return [Pause.of(row) for row in await ledger.fetch(QUERIES["list_pauses"])]


async def find_paused(ledger: Executor, handlers: Iterable[Handler]) -> set[Handler]:
    """Which of these handlers are paused."""
    rows = await ledger.fetch(QUERIES["find_paused"], *_columns(list(handlers)))
    return {(row["route"], row["handler"]) for row in rows}


async def list_known_handlers(ledger: Executor) -> list[Handler]:
    """The handlers that the ledger knows of, with their routes."""
    rows = await ledger.fetch(QUERIES["list_known_handlers"])
    return [(row["route"], row["handler"]) for row in rows]


async def count_held(ledger: Executor, route: str, handler: str | None) -> tuple[int, int]:
    """How many deliveries run, and how many wait."""
    [row] = await ledger.fetch(QUERIES["count_held"], route, handler or "")
    return row["running"], row["waiting"]


async def find_resumed(ledger: Executor, handlers: Sequence[Handler]) -> list[int]:
    """A few deliveries of each that may run now."""
    rows = await ledger.fetch(QUERIES["find_resumed"], *_columns(handlers), A_FEW)
    return [row["id"] for row in rows]


def _columns(handlers: Sequence[Handler]) -> tuple[list[str], list[str]]:
    return [route for route, _ in handlers], [name for _, name in handlers]
