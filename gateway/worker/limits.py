"""Limits over deliveries: concurrency and rate of a handler, bytes that a worker leases."""

import time
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Final
from uuid import UUID

from gateway.base.model import Lease
from gateway.config.registry import Subscription
from gateway.ledger.connection import Pool
from gateway.ledger.deliveries import ByteRoom, Limit, lease_limited, next_place

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


Key = tuple[str, str]


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

    def look_at(self, key: Key) -> None:
        """Make the next take ask for this handler."""
        self._look_at[key] = 0.0

    @property
    def handlers(self) -> list[Key]:
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
                await self._await_place(key)

    async def _await_place(self, key: Key) -> None:
        """If only the rate limit holds deliveries back, ask again as soon as it allows the next."""
        if self._limits[key].period is None:
            return
        wait = await next_place(self._leases, key)
        if wait:
            self._look_at[key] = min(self._look_at[key], time.monotonic() + wait.total_seconds())
