"""The transaction of one delivery: the handler's statements and the completion in one commit.

Handlers use it as `ctx.db` (`Database` in worker/context.py), which has only the public methods.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import asyncpg

from gateway.base.errors import StorageUnavailable, TransactionEnded
from gateway.base.model import Lease
from gateway.ledger.connection import LOST, QUERIES, TROUBLE, Connection
from gateway.ledger.deliveries import ENDED_EARLY, settle_done
from gateway.ledger.sessions import OWN_ROLE, Session, Sessions
from gateway.worker.hooks import NOTHING
from gateway.worker.statements import check_statement

COMMIT: Final = "commit"
CLOSED: Final = "ctx.db is closed: this delivery has been settled"


class DeliveryTransaction:
    """The delivery's transaction. It commits with the delivery's completion, or not at all.

    It is opened at first use, and closed when the delivery is settled. It runs one statement at a
    time: concurrent calls wait for each other.
    """

    def __init__(
        self,
        sessions: Sessions,
        timeout: timedelta,
        around: Callable[[str], AbstractContextManager[object]] = lambda _: NOTHING,
    ) -> None:
        self._sessions = sessions
        self._timeout = timeout
        self._around = around
        """Makes a context around each statement of the handler, and around the commit."""
        self._lock = asyncio.Lock()
        self._session: Session | None = None
        self._savepoints = 0
        self._closed = False
        self._lost = False

    async def send(self, method: str, query: str, *args: Any, **options: Any) -> Any:
        """Send a statement of the handler with this method of asyncpg's connection."""
        with self._around(query):
            async with self._lock:
                connection = await self._open_foreign(query)
                return await getattr(connection, method)(query, *args, **options)

    async def run_own(self, query: str, *args: Any) -> asyncpg.Record | None:
        """Run a statement of the gateway itself, which does not change the state of the session."""
        with self._around(query):
            async with self._lock:
                return await (await self._open()).fetchrow(query, *args)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Roll back the statements inside if they fail, and keep the rest of the transaction."""
        self._savepoints += 1
        name = f"gateway_{self._savepoints}"
        await self.send("execute", f"savepoint {name}")
        try:
            yield
        except BaseException:
            with suppress(*TROUBLE, RuntimeError):  # the first error is the one to raise
                await self.send(
                    "execute", f"rollback to savepoint {name}; release savepoint {name}"
                )
            raise
        await self.send("execute", f"release savepoint {name}")

    @property
    def used(self) -> bool:
        """Whether the handler has begun a transaction."""
        return self._session is not None

    @property
    def lost(self) -> bool:
        """Whether the connection to the server was lost during the run."""
        return self._lost or (self._session is not None and self._session.connection.is_closed())

    @property
    def may_have_broken_it(self) -> bool:
        """Whether the run itself may be why its connection was lost.

        Not if it never had one, and not if the server said that the process of another one crashed.
        """
        return self._session is not None and not self._session.is_bystander

    async def complete(self, lease: Lease, *, chain: bool) -> None:
        """Settle the delivery as done in the handler's transaction, and commit both.

        With `chain`, the connection is left ready for the next delivery.
        """
        with self._around(COMMIT):
            async with self._lock:
                self._closed = True
                session = self._session
                if session is None:
                    raise RuntimeError("the handler has begun no transaction")
                self._check_not_ended(session)
                await settle_done(session, lease, chain=chain)
                self._session = None
                self._sessions.give_back(session)

    async def check_transaction(self) -> None:
        """Raise TransactionEnded if the handler ended the transaction that was begun for it."""
        session = self._session
        if session is not None and session.is_foreign and not await session.is_proven():
            raise TransactionEnded(ENDED_EARLY)

    async def take_own_role(self) -> None:
        """Reset a role that the handler may have set, before statements of the gateway itself.

        Raises TransactionEnded if these would be committed on their own, without the completion.
        """
        if self._session is not None and self._session.is_foreign:
            self._check_not_ended(self._session)
            await self._session.connection.execute(OWN_ROLE)

    def _check_not_ended(self, session: Session) -> None:
        """Raise TransactionEnded if no transaction is open. Costs no round trip."""
        if not self.lost and not session.connection.is_in_transaction():
            raise TransactionEnded(ENDED_EARLY)

    async def mark_effects(self, delivery_id: int) -> None:
        """Mark the effects that the delivery completes without. They are committed with it."""
        await self.take_own_role()
        async with self._lock:
            await (await self._open()).execute(QUERIES["mark_own_effects"], delivery_id)

    async def is_read_only(self) -> bool:
        """Return whether the server itself refuses writes, not only the handler's transaction."""
        return self._session is None or await self._session.is_read_only()

    async def close(self) -> None:
        """Roll back uncommitted changes, and return the connection to the pool."""
        self._closed = True
        self._lost = self.lost
        session, self._session = self._session, None
        if session is None:
            return
        try:
            await session.roll_back()
        except BaseException as error:
            self._sessions.drop(session)
            if not isinstance(error, TROUBLE):
                raise
        else:
            self._sessions.give_back(session)

    def abandon(self) -> None:
        """Close the connection, so that a handler that cannot be stopped can no longer write."""
        self._closed = True
        if self._session is not None:
            self._sessions.drop(self._session)

    def give_up(self) -> None:
        """Close all connections to a server that no longer accepts writes."""
        self.abandon()
        self._sessions.drop_idle()

    async def _open_foreign(self, query: str) -> Connection:
        """Open the transaction for a statement of the handler, which may change the session.

        Raises StatementRefused if the statement must not be sent.
        """
        connection = await self._open()
        # Postgres reports each change of this setting to its client.
        strings = getattr(connection.get_settings(), "standard_conforming_strings", "on")
        check_statement(query, standard_strings=strings == "on")
        if self._session is not None:
            self._session.is_foreign = True
        return connection

    async def _open(self) -> Connection:
        if self._closed:
            raise RuntimeError(CLOSED)
        if self._session is None:
            try:
                self._session = await self._begin()
            except (StorageUnavailable, *LOST):
                self._lost = True
                self._sessions.drop_idle()
                raise
            if self._closed:  # settled while the transaction was being opened
                await self.close()
                raise RuntimeError(CLOSED)
        return self._session.connection

    async def _begin(self) -> Session:
        session = await self._sessions.take()
        try:
            await session.begin(self._timeout)
        except BaseException:
            self._sessions.drop(session)
            raise
        return session
