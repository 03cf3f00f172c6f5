"""Leases for handlers that have a concurrency or a rate: only for what can start at once."""

import time
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta

from gateway.ledger.connection import Pool
from gateway.ledger.deliveries import Limit, lease_limited, next_place
from gateway.model import Lease
from gateway.registry import Subscription
from gateway.run.held_bytes import HeldBytes

Key = tuple[str, str]


class Limited:
    """Knows when it is worth asking for which of them."""

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
        """When each handler is asked for next."""
        self._asked_at = dict.fromkeys(self._limits, 0.0)
        """When each was asked for last."""

    def look_at(self, key: Key) -> None:
        """Makes the next take ask for this handler."""
        self._look_at[key] = 0.0

    @property
    def handlers(self) -> list[Key]:
        return list(self._limits)

    def look_at_all(self) -> None:
        """Makes the next take ask for all of them."""
        self._look_at = dict.fromkeys(self._limits, 0.0)

    @property
    def wait_s(self) -> float:
        """How long there is nothing to ask for."""
        if not self._look_at:
            return float("inf")
        return max(min(self._look_at.values()) - time.monotonic(), 0.0)

    async def take(self, free: int) -> AsyncIterator[list[Lease]]:
        """Leases at most `free` deliveries, those first that were looked at longest ago."""
        for key in sorted(self._asked_at, key=self._asked_at.__getitem__):
            if free <= 0:
                return
            now = time.monotonic()
            if self._look_at[key] > now:
                continue
            self._asked_at[key] = now
            self._look_at[key] = now + self._look_every_s  # now: a look asked for meanwhile counts
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
        """Where a rate is all that holds it back, it is asked for as soon as that allows it."""
        if self._limits[key].period is None:
            return
        wait = await next_place(self._leases, key)
        if wait:
            self._look_at[key] = min(self._look_at[key], time.monotonic() + wait.total_seconds())
