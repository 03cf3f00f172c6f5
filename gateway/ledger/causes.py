"""Groups dead letters by error.

The sweep assigns groups in batches, so that listing only counts.
"""

import time
from dataclasses import dataclass
from typing import Any, Final

from gateway.ledger.connection import QUERIES, Connection, Executor, Pool, Pooled

LOCK: Final = 0x6361757365
"""The advisory lock that lets one worker at a time assign causes: "cause" in ASCII."""

BATCH: Final = 1_000
BATCHES: Final = 10
"""The maximum number of batches in a round, so that a hundred thousand new dead letters do not
delay the sweep."""

FORGET_EVERY_S: Final = 60.0


class CauseGrouper:
    """Keeps the causes of dead letters up to date."""

    def __init__(self) -> None:
        self._forgot_at = -FORGET_EVERY_S

    async def keep(self, ledger: Pool) -> int:
        """Assign causes to dead letters without one, as many as fit into a round."""
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
        """Delete unused causes.

        It takes the same lock, so that no dead letter is assigned a cause that is being deleted.
        """
        async with ledger.acquire() as connection, connection.transaction():
            if await connection.fetchval(QUERIES["try_turn"], LOCK):
                await connection.execute(QUERIES["forget_causes"])


async def forget_causes(ledger: Connection | Pooled) -> None:
    """Delete unused causes now instead of in the next sweep: a cause may contain erased data."""
    async with ledger.transaction():
        await ledger.execute(QUERIES["take_turn"], LOCK)
        await ledger.execute(QUERIES["forget_causes"])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup:
    """The number of dead letters, and their most frequent causes."""

    total: int
    causes: list[dict[str, Any]]


async def count_causes(
    ledger: Executor, *, route: str | None, handler: str | None, cause: int | None, limit: int
) -> DeadGroup:
    """Count dead letters by cause, without reading errors or events."""
    rows = await ledger.fetch(QUERIES["count_causes"], route, handler, cause, limit)
    causes = [{name: value for name, value in row.items() if name != "total"} for row in rows]
    return DeadGroup(total=rows[0]["total"] if rows else 0, causes=causes)
