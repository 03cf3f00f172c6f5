"""What a handler gets beside the event: its transaction, and tools that are safe to run twice."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import asyncpg
import httpx
import structlog

from gateway.ledger.connection import LOST, TROUBLE, Connection, Pool, Pooled
from gateway.ledger.deliveries import DONE, settle
from gateway.model import Lease
from gateway.run.upsert import (
    UNVERSIONED,
    Unversioned,
    arguments,
    upsert_statement,
)

CLOSED: Final = "ctx.db is closed: this delivery has been settled"
BEGIN_S: Final = 5.0
CLOSE_S: Final = 5.0


class Database:
    """The delivery's transaction: commits with the delivery's completion, or not at all.

    Opened at first use; one call at a time (calls from several tasks take turns); closed when the
    delivery is settled.
    """

    def __init__(self, pool: Pool, timeout: timedelta) -> None:
        self._pool = pool
        self._timeout = timeout
        self._turn = asyncio.Lock()
        self._connection: Any = None
        self._transaction: Any = None
        self._closed = False
        self._lost = False

    async def execute(self, query: str, *args: Any) -> str:
        """Runs a statement; returns its status, such as `UPDATE 1`."""
        async with self._turn:
            return await (await self._open()).execute(query, *args)

    async def executemany(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        """Runs a statement once per row of arguments."""
        async with self._turn:
            await (await self._open()).executemany(query, rows)

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """All rows."""
        async with self._turn:
            return await (await self._open()).fetch(query, *args)

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        """The first row, or None."""
        async with self._turn:
            return await (await self._open()).fetchrow(query, *args)

    async def fetchval(self, query: str, *args: Any, column: int = 0) -> Any:
        """One value of the first row, or None."""
        async with self._turn:
            return await (await self._open()).fetchval(query, *args, column=column)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A savepoint: what fails inside is undone, and the rest of the transaction goes on."""
        async with self._turn:
            savepoint = (await self._open()).transaction()
            await savepoint.start()
        try:
            yield
        except BaseException:
            async with self._turn:
                if not self._closed:
                    await savepoint.rollback()
            raise
        async with self._turn:
            await self._open()
            await savepoint.commit()

    @property
    def used(self) -> bool:
        """Whether the handler has begun a transaction."""
        return self._connection is not None

    @property
    def lost(self) -> bool:
        """Whether the server went away under the handler."""
        return self._lost or (self._connection is not None and _is_gone(self._connection))

    async def complete(self, lease: Lease) -> None:
        """Settles the delivery as done in the handler's own transaction and commits both."""
        async with self._turn:
            self._closed = True
            if not self.lost and not self._connection.is_in_transaction():
                raise RuntimeError(
                    "the handler ended its own transaction: leave that to the gateway"
                )
            await settle(self._connection, lease, DONE)
            await self._transaction.commit()

    async def close(self) -> None:
        """Undoes what is not committed and gives the connection back."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._lost = self._lost or _is_gone(connection)
        try:
            if not self._lost and connection.is_in_transaction():
                await asyncio.wait_for(self._transaction.rollback(), timeout=CLOSE_S)
            await self._pool.release(connection, timeout=CLOSE_S)
        except TROUBLE:
            _cut(connection)
            with suppress(*TROUBLE):
                await self._pool.release(connection)

    def abandon(self) -> None:
        """Cuts the connection, so that a handler that cannot be stopped can no longer write."""
        self._closed = True
        if self._connection is not None:
            _cut(self._connection)

    async def _open(self) -> Connection:
        if self._closed:
            raise RuntimeError(CLOSED)
        if self._connection is None:
            try:
                await self._begin()
            except LOST:
                self._lost = True
                raise
            if self._closed:  # settled while the transaction was being opened
                await self.close()
                raise RuntimeError(CLOSED)
        connection: Connection = self._connection
        return connection

    async def _begin(self) -> None:
        connection = await self._pool.acquire(timeout=BEGIN_S)
        try:
            async with asyncio.timeout(BEGIN_S):
                transaction = connection.transaction()
                await transaction.start()
                # A stopped worker's open transaction must not block its successor for ever.
                await connection.execute(
                    "set local idle_in_transaction_session_timeout = "
                    f"{max(1, int(self._timeout.total_seconds() * 1000))}"
                )
        except BaseException:
            _cut(connection)
            await self._pool.release(connection)
            raise
        self._connection, self._transaction = connection, transaction


def _is_gone(connection: Pooled) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the pool has taken it back with its connection
        return True


def _cut(connection: Pooled) -> None:
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


class Context:
    """The second argument of every handler."""

    def __init__(
        self,
        *,
        lease: Lease,
        pool: Pool,
        timeout: timedelta,
        http: httpx.AsyncClient,
    ) -> None:
        self._lease = lease
        self.db = Database(pool, timeout)
        """The delivery's transaction in the gateway's database, with asyncpg's methods."""
        self.http = http
        """A shared httpx client."""
        self.attempt: int = lease.attempt
        """1 on the first run, and again on the first run after a replay."""
        self.log: structlog.stdlib.BoundLogger = structlog.get_logger("handler").bind(
            route=lease.event.route,
            event_id=lease.event.id,
            delivery_id=lease.delivery_id,
            handler=lease.handler,
            attempt=lease.attempt,
        )
        """A logger whose lines carry route, event id and delivery id."""

    async def upsert(
        self,
        table: str,
        *,
        key: Mapping[str, Any],
        values: Mapping[str, Any],
        version: Any = UNVERSIONED,
    ) -> bool:
        """Inserts the row with this key, or changes it to these values.

        With `version`, kept in the table's `version` column, older state never overwrites newer.
        The key's columns need a unique index. Returns whether the row was written.
        """
        if not key:
            raise ValueError("ctx.upsert needs at least one key column")
        if version is None:
            raise ValueError(
                "ctx.upsert got version=None, which would be no guard at all: "
                "leave it out, or pass a time or number that grows"
            )
        query = upsert_statement(
            table, tuple(key), tuple(values), not isinstance(version, Unversioned)
        )
        row = arguments(key, values, version, self._lease.event.received_at)
        try:
            return await self.db.fetchval(query, *row) is not None
        except asyncpg.InvalidColumnReferenceError as error:
            raise ValueError(
                f"ctx.upsert({table!r}) needs a unique index on ({', '.join(key)}): {error}"
            ) from error

    def idempotency_key(self, name: str = "") -> str:
        """A key that is the same on every retry and replay of this delivery, and on no other.

        For APIs that deduplicate by themselves, such as Stripe's `Idempotency-Key`.
        """
        event = self._lease.event
        parts = (event.route, event.id, self._lease.handler, name)
        digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass"))
        return f"gw_{digest.hexdigest()[:40]}"
