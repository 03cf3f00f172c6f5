"""Handlers that act once per key, whatever the number of events: the first to finish wins."""

from collections.abc import Awaitable, Callable

import asyncpg

from gateway.errors import LeaseLost, Reject
from gateway.ledger.connection import Pool
from gateway.ledger.queries import QUERIES
from gateway.ledger.sealed import Vault
from gateway.model import Lease
from gateway.registry.key_path import KeyPath

RunOwn = Callable[..., Awaitable[asyncpg.Record | None]]


class DoneBefore(Exception):
    """Another delivery has done what this one was to do."""


class AtIt(Exception):
    """Another delivery is at it: whether it will be done is not known yet."""


class OncePer:
    """One delivery of such a handler."""

    def __init__(self, lease: Lease, path: KeyPath, ledger: Pool, vault: Vault) -> None:
        self._lease = lease
        self._path = path
        self._ledger = ledger
        self._vault = vault
        self._key: str | None = None
        """Read before the run: the handler may change the payload."""

    async def reserve(self) -> None:
        """Before a run. Raises DoneBefore or AtIt, or Reject where the event has no such key."""
        self._key = self._path.key(self._lease.event.payload)
        if self._key is None:
            raise Reject(f'once_per="{self._path}": the payload has no such value')
        row = await self._ledger.fetchrow(QUERIES["reserve_once"], *self._arguments)
        if row is None or not row["is_held"]:
            raise LeaseLost(f"delivery {self._lease.delivery_id} belongs to another run now")
        if row["is_ours"]:
            return
        if row["is_done"]:
            by = f"event {row['event_id']}"
            raise DoneBefore(f"{self._path} {self._key} was done before, by {by}")
        raise AtIt(f"another event of {self._path} {self._key} runs")

    async def keep(self, run: RunOwn) -> None:
        """At the end of a run, in its transaction. Raises LeaseLost where another took over."""
        if await run(QUERIES["keep_once"], *self._arguments) is None:
            raise LeaseLost(f"another delivery acts for {self._path} {self._key} now")

    @property
    def _arguments(self) -> tuple[object, ...]:
        lease, key = self._lease, self._key or ""
        route, handler = lease.event.route, lease.handler
        kept = self._vault.turn_key(route, handler, key)
        former = None if kept == key else key  # of before the route was encrypted
        return route, handler, kept, lease.delivery_id, lease.token, former
