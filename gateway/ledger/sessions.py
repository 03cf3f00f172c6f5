"""Connections for handlers: taken as good as new, given back as good as new."""

import asyncio
import time
from collections import deque
from datetime import timedelta
from secrets import token_hex
from typing import Final

from gateway.ledger.connection import (
    TROUBLE,
    Connection,
    Opener,
    close_quietly,
    forget_query,
)
from gateway.ledger.pooler import is_pooled

BEGIN_S: Final = 5.0
ROLL_BACK_S: Final = 5.0
AHEAD_S: Final = 0.05
"""How old a transaction may get that was begun ahead: `now()` in it is when it was begun."""

LEAST_CHAINED_MS: Final = 1000
"""Under this idle limit the server might end a transaction that was begun ahead."""

MOST: Final = 1000
OWN_ROLE: Final = "reset session authorization"
"""Resets the role, too."""

IDLE_S: Final = 300.0
"""A connection that was not needed for so long is not used again: firewalls forget it silently."""


class Session:
    """One connection, and what is known of the state of its session."""

    __slots__ = ("begun_at", "connection", "idle_since", "is_foreign", "limit_ms", "proof")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.limit_ms: int | None = None
        self.is_foreign = False
        """Whether statements were run that are not ours: they may have changed the session."""
        self.begun_at: float | None = None
        """When a transaction was begun for whoever takes the session next."""
        self.idle_since = 0.0
        self.proof = ""
        """The value of the setting gateway.transaction in the transaction that was begun last.
        gateway.settle_done compares them, and so finds out if a handler ended that transaction."""

    async def begin(self, limit: timedelta) -> None:
        """Opens a transaction that the server ends if nothing is heard of it for `limit`: that of
        a stopped worker must not block its successor for ever."""
        limit_ms = max(1, int(limit.total_seconds() * 1000))
        if self._is_lent:
            limited = f"set local idle_in_transaction_session_timeout = {limit_ms}"
            await self.connection.execute(f"begin; {limited}; {self._prove()}", timeout=BEGIN_S)
            return
        begun_at, self.begun_at = self.begun_at, None
        query = "begin"
        if limit_ms != self.limit_ms:  # in the same message it belongs to the transaction
            query = f"begin; set idle_in_transaction_session_timeout = {limit_ms}"
        elif begun_at is not None and time.monotonic() - begun_at < AHEAD_S:
            return  # `commit` has set its proof
        query = f"{query}; {self._prove()}"
        if begun_at is not None:
            query = f"rollback; {query}"
        await self.connection.execute(query, timeout=BEGIN_S)
        self.limit_ms = limit_ms

    async def commit(self, last: str, *, chain: bool) -> None:
        """Runs a last statement, commits, and makes the session as good as new: one round trip.

        With `chain`, the next transaction is begun along with it.
        """
        chain = chain and not self.is_foreign and (self.limit_ms or 0) >= LEAST_CHAINED_MS
        if chain:
            query = f"{last}; commit and chain; {self._prove()}"
        else:
            own_role = f"{OWN_ROLE}; " if self.is_foreign else ""
            query = f"{own_role}{last}; commit{self._forgetting}"
        await self.connection.execute(query)
        if self.is_foreign:
            self.limit_ms, self.is_foreign = None, False
        if chain:
            self.begun_at = time.monotonic()

    async def roll_back(self) -> None:
        """Undoes the transaction, and makes the session as good as new."""
        self.limit_ms = None  # it may have been set in this very transaction
        await self.connection.execute(f"rollback{self._forgetting}", timeout=ROLL_BACK_S)
        self.is_foreign = False

    def _prove(self) -> str:
        """Return a statement that marks the transaction with a new proof. Postgres forgets it when
        the transaction ends. SET, unlike SELECT, leaves the isolation level to the handler."""
        self.proof = token_hex(8)
        return f"set local gateway.transaction = '{self.proof}'"

    async def is_proven(self) -> bool:
        """Return whether the transaction is still the one that was begun here. Also true if that
        cannot be found out, because the transaction has failed or the connection is gone."""
        if self.connection.is_closed():
            return True
        if not self.connection.is_in_transaction():
            return False
        query = "select current_setting('gateway.transaction', true)"
        try:
            found: str | None = await self.connection.fetchval(query, timeout=ROLL_BACK_S)
        except TROUBLE:
            return True
        return found == self.proof

    async def is_read_only(self) -> bool:
        """Return whether the server refuses writes, or does not answer. Roll back first: the
        transaction itself may be read only because the handler made it so."""
        query = "select current_setting('transaction_read_only')::boolean"
        try:
            await self.roll_back()
            return bool(await self.connection.fetchval(query, timeout=ROLL_BACK_S))
        except TROUBLE:
            return True

    @property
    def _is_lent(self) -> bool:
        """Whether the server's session is ours for this transaction only: neither can another one
        be begun ahead then, nor its limit be set for the next ones."""
        return is_pooled(self.connection)

    @property
    def _forgetting(self) -> str:
        return f"; {forget_query(self.connection)}" if self.is_foreign else ""


class Sessions:
    """As many connections as are in use at once, and those that were lately.

    asyncpg's pool asks the server to reset a connection whenever it is given back. Here that goes
    along with the end of the transaction, where it is needed at all: it saves a round trip.
    """

    def __init__(self, url: str, *, name: str, most: int = MOST, **server_settings: str) -> None:
        self._room = asyncio.Semaphore(most)
        """For those that are taken. What is idle has room, too: no new one is opened beside it."""
        self._opener = Opener(
            url, name=name, command_timeout_s=None, isolation=None, **server_settings
        )
        self._idle: deque[Session] = deque()
        self._taken: set[Session] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def use(self) -> tuple[int, int]:
        """How many are in use, and how many are not."""
        return len(self._taken), len(self._idle)

    async def take(self) -> Session:
        """A session of the caller's own, when there is one. Raises StorageUnavailable."""
        await self._room.acquire()
        try:
            session = self._newest_idle() or Session(await self._opener.reach())
        except BaseException:
            self._room.release()
            raise
        self._taken.add(session)
        return session

    def give_back(self, session: Session) -> None:
        """For a session whose transaction was ended, or a fresh one begun."""
        self._leave(session)
        session.idle_since = time.monotonic()
        self._idle.append(session)
        if session.begun_at is not None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(AHEAD_S, self._end_unused)

    def drop_idle(self) -> None:
        """For when one of them turned out to be dead: the others may be, too."""
        while self._idle:
            self._idle.pop().connection.terminate()

    def drop(self, session: Session) -> None:
        """For a session in any state: whatever it was doing is undone by the server."""
        self._leave(session)
        session.connection.terminate()

    def _leave(self, session: Session) -> None:
        if session in self._taken:
            self._taken.remove(session)
            self._room.release()

    def _end_unused(self) -> None:
        """Nobody came for these transactions: an idle one would worry whoever looks."""
        self._timer = None
        for session in [s for s in self._idle if s.begun_at is not None]:
            task = asyncio.create_task(self._end(session))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end(self, session: Session) -> None:
        await self._room.acquire()
        if session not in self._idle:  # somebody came, after all
            self._room.release()
            return
        self._idle.remove(session)
        self._taken.add(session)
        session.begun_at = None
        try:
            await session.roll_back()
        except TROUBLE:
            self.drop(session)
        else:
            self.give_back(session)

    async def close(self) -> None:
        """Ends all connections, in use or not."""
        if self._timer is not None:
            self._timer.cancel()
        for session in self._taken:
            session.connection.terminate()
        while self._idle:
            await close_quietly(self._idle.pop().connection)

    def _newest_idle(self) -> Session | None:
        while self._idle:
            session = self._idle.pop()
            if session.connection.is_closed():
                continue
            if session.idle_since > time.monotonic() - IDLE_S:
                return session
            session.connection.terminate()
            self.drop_idle()  # the newest is too old, and so are they
        return None
