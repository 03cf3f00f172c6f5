"""Of what deliveries died: told by the sweep a few at a time, so that whoever looks only counts."""

import time
from dataclasses import dataclass
from typing import Any, Final

from gateway.ledger.connection import Connection, Executor, Pool, Pooled
from gateway.ledger.queries import QUERIES

LOCK: Final = 0x6361757365
"""One worker at a time tells causes: "cause" in ASCII."""

BATCH: Final = 1_000
BATCHES: Final = 10
"""Of a round, so that a hundred thousand deaths at once hold up no sweep."""

FORGET_EVERY_S: Final = 60.0


class Causes:
    """Keeps them up to date."""

    def __init__(self) -> None:
        self._forgot_at = -FORGET_EVERY_S

    async def keep(self, ledger: Pool) -> int:
        """Tells the causes of those of whom it is not known yet, as many as fit into a round."""
        told = 0
        for _ in range(BATCHES):
            batch = await self._tell(ledger)
            told += batch
            if batch < BATCH:
                break
        if time.monotonic() - self._forgot_at >= FORGET_EVERY_S:
            await self._forget(ledger)
            self._forgot_at = time.monotonic()
        return told

    async def _tell(self, ledger: Pool) -> int:
        async with ledger.acquire() as connection, connection.transaction():
            if not await connection.fetchval(QUERIES["try_turn"], LOCK):
                return 0
            told: int = await connection.fetchval(QUERIES["tell_causes"], BATCH)
            return told

    async def _forget(self, ledger: Pool) -> None:
        """Under the same lock: one that is forgotten must not be given to a dead one meanwhile."""
        async with ledger.acquire() as connection, connection.transaction():
            if await connection.fetchval(QUERIES["try_turn"], LOCK):
                await connection.execute(QUERIES["forget_causes"])


async def forget_causes(ledger: Connection | Pooled) -> None:
    """Now, and not when the sweep comes to it: what was erased may be told in a cause."""
    async with ledger.transaction():
        await ledger.execute(QUERIES["take_turn"], LOCK)
        await ledger.execute(QUERIES["forget_causes"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """How many are dead, and of what the most."""

    total: int
    causes: list[dict[str, Any]]


async def count_causes(
    ledger: Executor, *, route: str | None, handler: str | None, cause: int | None, limit: int
) -> Died:
    """Without looking at errors or events."""
    rows = await ledger.fetch(QUERIES["count_causes"], route, handler, cause, limit)
    causes = [{name: value for name, value in row.items() if name != "total"} for row in rows]
    return Died(total=rows[0]["total"] if rows else 0, causes=causes)
