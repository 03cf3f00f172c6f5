"""Decides what a worker leases next: deliveries named by wake-ups, or the oldest in the ledger."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from gateway.base.model import HandlerKey, Lease
from gateway.config.registry import Subscription
from gateway.ledger.connection import Pool
from gateway.ledger.deliveries import (
    ByteRoom,
    Limit,
    find_due,
    lease_due,
    lease_hinted,
    lease_limited,
    next_place,
)
from gateway.providers.publish import PUBLISH
from gateway.worker.metrics import WorkerMetrics

SMALL_BYTES: Final = 64 * 1024
"""A body up to this size never waits for bytes: slots bound how many of them there are."""

SMALL_SHARE: Final = 4
"""Small bodies together take at most this part of the limit, however many slots there are."""


class HeldBytes:
    """Counts the large bodies of deliveries that run or were leased ahead.

    The next large body may be leased while less than the limit is held, whatever its size. So a
    worker holds at most the limit plus one body, a body larger than the limit still runs, and the
    oldest large body is next as soon as there is room: smaller ones cannot overtake it for ever.
    """

    def __init__(self, limit: int, *, slots: int) -> None:
        self._limit = limit
        # As many deliveries as there are slots may run, and as many again be leased ahead.
        self._small = min(SMALL_BYTES, limit // (SMALL_SHARE * 2 * slots))
        self._held: dict[UUID, int] = {}

    @property
    def room(self) -> ByteRoom:
        """The byte limits of the next lease statement."""
        return ByteRoom(large=self._limit - sum(self._held.values()), small=self._small)

    @property
    def is_full(self) -> bool:
        """Whether no large body may be leased now."""
        return self.room.large <= 0

    def add(self, lease: Lease) -> bool:
        """Count a delivery that was leased; return whether that has used up the room."""
        was_full = self.is_full
        if lease.body_bytes > self._small:
            self._held[lease.token] = lease.body_bytes
        return self.is_full and not was_full

    def remove(self, lease: Lease) -> bool:
        """Forget a delivery whose body is freed; return whether there is room again."""
        was_full = self.is_full
        self._held.pop(lease.token, None)
        return was_full and not self.is_full


class Limited:
    """Leases deliveries of limited handlers, and schedules when to ask the ledger for each."""

    def __init__(
        self,
        leases: Pool,
        subscriptions: Iterable[Subscription],
        *,
        lease: timedelta,
        look_every: timedelta,
        held: HeldBytes,
        suspects: bool,
    ) -> None:
        self._leases = leases
        self._held = held
        self._suspects = suspects
        self._lease = lease
        self._look_every_s = look_every.total_seconds()
        self._limits = {
            s.key: Limit(concurrency=s.concurrency, period=s.rate.period if s.rate else None)
            for s in subscriptions
            if s.is_limited
        }
        self._look_at = dict.fromkeys(self._limits, 0.0)
        """When to ask for each handler next, in monotonic seconds."""
        self._asked_at = dict.fromkeys(self._limits, 0.0)
        """When each handler was asked for last, in monotonic seconds."""

    def look_at(self, key: HandlerKey) -> None:
        """Make the next take ask for this handler."""
        self._look_at[key] = 0.0

    @property
    def handlers(self) -> list[HandlerKey]:
        return list(self._limits)

    def look_at_all(self) -> None:
        """Make the next take ask for all handlers."""
        self._look_at = dict.fromkeys(self._limits, 0.0)

    @property
    def wait_s(self) -> float:
        """How many seconds there is nothing to ask for."""
        if not self._look_at:
            return float("inf")
        return max(min(self._look_at.values()) - time.monotonic(), 0.0)

    async def take(self, free: int) -> AsyncIterator[list[Lease]]:
        """Lease at most `free` deliveries. Handlers that were asked for longest ago come first."""
        for key in sorted(self._asked_at, key=self._asked_at.__getitem__):
            if free <= 0:
                return
            now = time.monotonic()
            if self._look_at[key] > now:
                continue
            self._asked_at[key] = now
            self._look_at[key] = (
                now + self._look_every_s
            )  # before the statement, so that look_at() during it counts
            leases = await lease_limited(
                self._leases,
                free,
                key,
                self._limits[key],
                self._lease,
                self._held.room,
                suspects=self._suspects,
            )
            free -= len(leases)
            if free <= 0:
                self._look_at[key] = 0.0
            yield leases
            if free > 0:
                await self._await_slot(key)

    async def _await_slot(self, key: HandlerKey) -> None:
        """If only the rate limit holds deliveries back, ask again as soon as it allows the next."""
        if self._limits[key].period is None:
            return
        wait = await next_place(self._leases, key)
        if wait:
            self._look_at[key] = min(self._look_at[key], time.monotonic() + wait.total_seconds())


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
        self.scan_every_s = scan_every.total_seconds()
        self._scan_at = 0.0
        self._most = self._asked = MOST_AT_ONCE
        self._hints: set[int] = set()
        self._left: set[HandlerKey] = set()
        """Ordered handlers of which a delivery has ended, so that the next one may be due."""
        self._limited_first = False

    def hint(self, delivery_ids: Iterable[int], free: int) -> None:
        """Add a wake-up: these deliveries may be due. Suspects are found without."""
        if self._suspects:
            return
        self._hints.update(delivery_ids)
        if len(self._hints) > free:
            self._is_behind = True
            self._hints.clear()
            self.scan_now()

    def scan_now(self) -> None:
        """Make the next take read the ledger."""
        self._scan_at = 0.0
        self._limited.look_at_all()

    def hold(self, lease: Lease) -> None:
        """Count the body of a delivery that was leased."""
        if self._held.add(lease):
            self._byte_room_changed()

    def release(self, lease: Lease) -> None:
        """Forget the body of a delivery whose run has ended."""
        if self._held.remove(lease):
            self._byte_room_changed()

    def _byte_room_changed(self) -> None:
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

    async def _lease_due(self, room: int, handlers: Sequence[HandlerKey]) -> list[Lease]:
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
        self._scan_at = time.monotonic() + self.scan_every_s
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
