"""Looks for new effects all the time, past the wires, and notes when each was seen first."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from gateway.ledger.connection import LOST, Connection, close_quietly
from tests.torture.record import Record
from tests.torture.stage import HANDLER_TIMEOUT_S, LEASE_S

LOOK_S: Final = 0.1
HOLE_S: Final = 2.0 * (HANDLER_TIMEOUT_S + LEASE_S)
"""How long a number that was skipped may still turn up: they are given out before the commit."""

NEW: Final = (
    "select n, event_id, handler from public.effects where n > $1 or n = any ($2) order by n"
)


class Watcher:
    """Patient while Postgres is away."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], record: Record) -> None:
        self._open = connect
        self._record = record
        self._last = 0
        self._holes: dict[int, float] = {}

    async def watch_forever(self) -> None:
        connection: Connection | None = None
        try:
            while True:
                try:
                    connection = connection or await self._connect()
                    await self._look(connection)
                except (asyncpg.PostgresError, *LOST):
                    await close_quietly(connection)
                    connection = None
                await asyncio.sleep(LOOK_S)
        finally:
            await close_quietly(connection)

    async def _connect(self) -> Connection:
        """From the beginning: after a failover, numbers are given out again."""
        self._last, self._holes = 0, {}
        return await self._open()

    async def _look(self, connection: Connection) -> None:
        rows = await connection.fetch(NEW, self._last, list(self._holes))
        now = time.monotonic()
        for row in rows:
            self._record.see(row["event_id"], row["handler"], now)
            self._holes.pop(row["n"], None)
        for row in (row for row in rows if row["n"] > self._last):
            self._holes |= dict.fromkeys(range(self._last + 1, row["n"]), now)
            self._last = row["n"]
        self._holes = {n: at for n, at in self._holes.items() if at > now - HOLE_S}
