"""Decides what a worker leases next: what the queue named, or what is oldest in the ledger."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from gateway.ledger.connection import Pool
from gateway.ledger.deliveries import find_due, lease_due, lease_hinted
from gateway.metrics.worker import WorkerMetrics
from gateway.model import Lease
from gateway.providers.publish import PUBLISH
from gateway.registry import Subscription
from gateway.run.held_bytes import HeldBytes
from gateway.run.limited import Limited

MOST_AT_ONCE: Final = 64
TOLD_WITHIN: Final = timedelta(seconds=2)
"""By then the queue has told of a delivery, where it does so at all."""


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
        subscriptions: Sequence[Subscription],
        lease: timedelta,
        scan_every: timedelta,
        held: HeldBytes,
        suspects: bool,
        metrics: WorkerMetrics,
    ) -> None:
        self._leases = leases
        self._held = held
        self._suspects = suspects
        self._metrics = metrics
        self._is_behind = True
        """Whether more may be due than was told of, for which nobody is to blame."""
        self._handlers = [s.key for s in subscriptions if not s.is_limited]
        self._limited = Limited(
            leases,
            subscriptions,
            lease=lease,
            look_every=scan_every,
            held=held,
            suspects=suspects,
        )
        self._lease = lease
        self._scan_every_s = scan_every.total_seconds()
        self._scan_at = 0.0
        self._most = self._asked = MOST_AT_ONCE
        self._hints: set[int] = set()
        self._left: set[tuple[str, str]] = set()
        """Handlers of which the next delivery may have got its turn."""
        self._limited_first = False

    def hint(self, delivery_ids: Iterable[int], free: int) -> None:
        """Takes note of deliveries that are said to be due."""
        self._hints.update(delivery_ids)
        if len(self._hints) > free:
            self._is_behind = True
            self._hints.clear()
            self.scan_now()

    def scan_now(self) -> None:
        """Makes the next take read the ledger."""
        self._scan_at = 0.0
        self._limited.look_at_all()

    def byte_room_changed(self) -> None:
        """Make the next take read the ledger.

        If there is room for large bodies again, the oldest may have waited for it. If there is none
        any more, a lease statement may have come back short, and the next one finds the small
        bodies that are due behind large ones.
        """
        self._is_behind = True
        self.scan_now()

    def look_again(self, subscription: Subscription) -> None:
        """A delivery has ended, and another of its handler may have waited for that."""
        if subscription.is_limited:
            self._limited.look_at(subscription.key)
        elif subscription.turns is not None:
            self._left.add(subscription.key)

    def ease(self) -> None:
        """Asks for half as much next time: the last take did not come back in time, perhaps
        because its bodies are more than the way to Postgres carries."""
        self._most = max(self._asked // 2, 1)
        self.scan_now()

    def wait_s(self, free: int) -> float:
        """How long there is nothing to do, unless a hint comes."""
        if self._hints or self._left:
            return 0.0
        wait_s = max(self._scan_at - time.monotonic(), 0.0)
        return min(wait_s, self._limited.wait_s) if free else wait_s

    async def take(self, room: int, free: int) -> AsyncGenerator[list[Lease], None]:
        """Leases at most `room` deliveries, of which `free` can start at once; in pieces, so that
        what was leased is not lost where the next piece fails."""
        self._limited_first = not self._limited_first  # neither kind starves the other
        taken = 0
        if self._limited_first:
            async for leases in self._limited.take(free):
                self._metrics.leased("limited", len(leases))
                taken += len(leases)
                yield leases
        if taken < room:
            async for leases in self._take(room - taken):
                taken += len(leases)
                yield leases
        if not self._limited_first:
            async for leases in self._limited.take(free - taken):
                self._metrics.leased("limited", len(leases))
                yield leases

    async def _take(self, room: int) -> AsyncIterator[list[Lease]]:
        self._asked = min(room, self._most)
        hints, self._hints = list(self._hints), set()
        if time.monotonic() >= self._scan_at or len(hints) > self._asked:
            yield await self._scan(self._asked)
        else:
            leases = await self._follow(hints) if hints else []
            self._metrics.leased("queue", len(leases))
            yield leases
            if self._left and len(leases) < self._asked:
                left, self._left = list(self._left), set()
                room = self._asked - len(leases)
                leases = await self._lease_due(room, left)
                self._metrics.leased("turn", len(leases))
                yield leases
        self._most = min(self._most * 2, MOST_AT_ONCE)

    async def _lease_due(self, room: int, handlers: Sequence[tuple[str, str]]) -> list[Lease]:
        return await lease_due(
            self._leases, room, handlers, self._lease, self._held.room, suspects=self._suspects
        )

    async def _follow(self, hints: list[int]) -> list[Lease]:
        leases = await lease_hinted(
            self._leases, hints, self._handlers, self._lease, self._held.room
        )
        if len(leases) < len(hints) and self._limited.handlers:
            others = set(hints) - {lease.delivery_id for lease in leases}
            for key in await find_due(self._leases, list(others), self._limited.handlers):
                self._limited.look_at(key)
        return leases

    async def _scan(self, room: int) -> list[Lease]:
        # Before the statement: a scan asked for while it runs is not forgotten.
        self._scan_at = time.monotonic() + self._scan_every_s
        was_behind, self._is_behind = self._is_behind, False
        self._left.clear()
        leases = await self._lease_due(room, self._handlers)
        self._metrics.leased("ledger", len(leases))
        if len(leases) == room:
            self._scan_at, self._is_behind = 0.0, True
        elif not was_behind:
            self._metrics.repaired("wake_up_missed", _count_missed(leases))
        return leases


def _count_missed(leases: Sequence[Lease]) -> int:
    """Those that should have been told of: they run for the first time, and came a while ago. A
    job may have been delayed, which nobody is told of."""
    late = datetime.now(UTC) - TOLD_WITHIN
    return sum(
        lease.run == 1 and lease.event.received_at < late and lease.event.provider != PUBLISH.name
        for lease in leases
    )
