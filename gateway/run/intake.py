"""Decides what a worker leases next: what the queue named, or what is oldest in the ledger."""

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

from gateway.ledger.connection import Pool
from gateway.ledger.deliveries import lease_due, lease_hinted
from gateway.model import Lease

MOST_AT_ONCE: Final = 64


class Intake:
    """Hints make work start sooner; the ledger decides.

    While the hints fit into the free slots they are followed. Once there are more of them than
    slots, they are dropped and the ledger is read oldest first until it has no more, so that old
    work is never overtaken for ever by new. It is also read once per sweep, hints or not.
    """

    def __init__(
        self,
        leases: Pool,
        *,
        handlers: Sequence[tuple[str, str]],
        lease: timedelta,
        scan_every: timedelta,
    ) -> None:
        self._leases = leases
        self._handlers = handlers
        self._lease = lease
        self._scan_every_s = scan_every.total_seconds()
        self._scan_at = 0.0
        self._most = self._asked = MOST_AT_ONCE
        self._hints: set[int] = set()

    def hint(self, delivery_ids: Iterable[int], free: int) -> None:
        """Takes note of deliveries that are said to be due."""
        self._hints.update(delivery_ids)
        if len(self._hints) > free:
            self._hints.clear()
            self.scan_now()

    def scan_now(self) -> None:
        """Makes the next take read the ledger."""
        self._scan_at = 0.0

    def ease(self) -> None:
        """Asks for half as much next time: the last take did not come back in time, perhaps
        because its bodies are more than the way to Postgres carries."""
        self._most = max(self._asked // 2, 1)
        self.scan_now()

    @property
    def wait_s(self) -> float:
        """How long there is nothing to do, unless a hint comes."""
        return 0.0 if self._hints else max(self._scan_at - time.monotonic(), 0.0)

    async def take(self, free: int) -> list[Lease]:
        """Leases at most `free` deliveries."""
        self._asked = min(free, self._most)
        leases = await self._take(self._asked)
        self._most = min(self._most * 2, MOST_AT_ONCE)
        return leases

    async def _take(self, free: int) -> list[Lease]:
        if not self._handlers:
            self._scan_at = time.monotonic() + self._scan_every_s
            return []
        if time.monotonic() >= self._scan_at:
            return await self._scan(free)
        hints, self._hints = list(self._hints), set()
        if len(hints) > free:
            return await self._scan(free)
        return await lease_hinted(self._leases, hints, self._handlers, self._lease)

    async def _scan(self, free: int) -> list[Lease]:
        scanned_at = time.monotonic()
        leases = await lease_due(self._leases, free, self._handlers, self._lease)
        more = len(leases) == free
        self._scan_at = 0.0 if more else scanned_at + self._scan_every_s
        return leases
