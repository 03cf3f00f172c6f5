"""Decides what a worker leases next: deliveries named by wake-ups, or the oldest in the ledger."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from gateway.base.model import Lease
from gateway.config.registry import Subscription
from gateway.ledger.connection import Pool
from gateway.ledger.deliveries import find_due, lease_due, lease_hinted
from gateway.providers.publish import PUBLISH
from gateway.worker.limits import HeldBytes, Limited
from gateway.worker.metrics import WorkerMetrics

MOST_AT_ONCE: Final = 64
TOLD_WITHIN: Final = timedelta(seconds=2)
"""A wake-up for a delivery arrives within this time, if it arrives at all."""


class Intake:
    """Leases deliveries. Wake-ups make work start sooner, but the ledger decides which are due.

    While the wake-ups fit into the free slots, the worker leases the deliveries that they name. If
    there are more of them than slots, they are dropped and the ledger is read, oldest deliveries
    first, until no more are due. So new deliveries cannot overtake old ones for ever. The ledger is
    also read once per sweep, with or without wake-ups.
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
        """Whether deliveries may be due without a wake-up for a legitimate reason.

        The next scan then counts none of them as a missed wake-up.
        """
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
        """Ordered handlers of which a delivery has ended, so that the next one may be due."""
        self._limited_first = False

    def hint(self, delivery_ids: Iterable[int], free: int) -> None:
        """Add a wake-up: these deliveries may be due."""
        self._hints.update(delivery_ids)
        if len(self._hints) > free:
            self._is_behind = True
            self._hints.clear()
            self.scan_now()

    def scan_now(self) -> None:
        """Make the next take read the ledger."""
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
        """Look for the next delivery of a handler after one of its deliveries has ended."""
        if subscription.is_limited:
            self._limited.look_at(subscription.key)
        elif subscription.turns is not None:
            self._left.add(subscription.key)

    def ease(self) -> None:
        """Lease half as many deliveries next time.

        The last statement failed or timed out, perhaps because the bodies were too large for the
        connection to Postgres.
        """
        self._most = max(self._asked // 2, 1)
        self.scan_now()

    def wait_s(self, free: int) -> float:
        """Return how many seconds there is nothing to lease, unless a wake-up arrives."""
        if self._hints or self._left:
            return 0.0
        wait_s = max(self._scan_at - time.monotonic(), 0.0)
        return min(wait_s, self._limited.wait_s) if free else wait_s

    async def take(self, room: int, free: int) -> AsyncGenerator[list[Lease], None]:
        """Lease at most `room` deliveries, of which `free` can start at once.

        Yield them in batches, so that the leases of a batch are kept if the next batch fails.
        """
        self._limited_first = (
            not self._limited_first
        )  # alternate, so that neither kind starves the other
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
        # Set before the statement, so that a scan requested while it runs is not forgotten.
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
    """Count the deliveries whose wake-up was missed: first runs of events received a while ago.

    Jobs are left out, because a delayed job falls due without a wake-up.
    """
    late = datetime.now(UTC) - TOLD_WITHIN
    return sum(
        lease.run == 1 and lease.event.received_at < late and lease.event.provider != PUBLISH.name
        for lease in leases
    )
