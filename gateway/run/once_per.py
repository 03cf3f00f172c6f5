"""Handlers that act once per key, whatever the number of events: the first to finish wins."""

from collections.abc import Awaitable, Callable

import asyncpg

from gateway.errors import Reject
from gateway.ledger.connection import Pool
from gateway.ledger.queries import QUERIES
from gateway.model import Lease
from gateway.registry.key_path import KeyPath

RunOwn = Callable[..., Awaitable[asyncpg.Record | None]]


class DoneBefore(Exception):
    """Another delivery has done what this one was to do."""


class OncePer:
    """One delivery of such a handler."""

    def __init__(self, lease: Lease, path: KeyPath, ledger: Pool) -> None:
        self._lease = lease
        self._path = path
        self._ledger = ledger

    async def check(self) -> None:
        """Before a run. Raises DoneBefore, or Reject where the event has no such key."""
        row = await self._ledger.fetchrow(QUERIES["find_once"], *self._key())
        if row is not None and row["delivery_id"] != self._lease.delivery_id:
            raise self._done_before(row["event_id"])

    async def keep(self, run: RunOwn) -> None:
        """At the end of a run, in its transaction. Raises DoneBefore where another was faster."""
        if await run(QUERIES["keep_once"], *self._key(), self._lease.delivery_id) is None:
            raise self._done_before("another")

    def _key(self) -> tuple[str, str, str]:
        event = self._lease.event
        key = self._path.key(event.payload)
        if key is None:
            raise Reject(f'once_per="{self._path}": the payload has no such value')
        return event.route, self._lease.handler, key

    def _done_before(self, event_id: str) -> DoneBefore:
        return DoneBefore(f"{self._path} {self._key()[2]} was done before, by event {event_id}")
