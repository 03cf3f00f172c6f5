"""Connections for handlers, whose session state is reset between transactions."""

import asyncio
import time
from collections import deque
from datetime import timedelta
from secrets import token_hex
from typing import Final

import asyncpg

from gateway.ledger.connection import TROUBLE, Connection, Opener, close_quietly, forget_query
from gateway.ledger.servers import is_pooled

BEGIN_S: Final = 5.0
ROLL_BACK_S: Final = 5.0
AHEAD_S: Final = 0.05
"""The maximum age of a transaction that was begun ahead: `now()` in it is the time of its begin."""

LEAST_CHAINED_MS: Final = 1000
"""If the idle limit is lower, the server might end a transaction that was begun ahead."""

MOST: Final = 1000
OWN_ROLE: Final = "reset session authorization"
"""This also resets the role."""

IDLE_S: Final = 300.0
"""A connection that was idle for longer is not used again, because firewalls drop it silently."""


class Session:
    """A connection and the known state of its session."""

    __slots__ = (
        "begun_at",
        "connection",
        "idle_since",
        "is_bystander",
        "is_foreign",
        "limit_ms",
        "proof",
    )

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.limit_ms: int | None = None
        self.is_foreign = False
        """Whether foreign statements (a handler's) were run, which may have changed the session."""
        self.begun_at: float | None = None
        """When a transaction was begun ahead for the next user of the session."""
        self.idle_since = 0.0
        self.proof = ""
        """The value of the setting gateway.transaction in the transaction that was begun last.
        gateway.settle_done compares them to detect that a handler ended that transaction."""
        self.is_bystander = False
        """Whether the server has ended the session because the process of another one crashed."""
        connection.add_log_listener(self._hear)

    def _hear(self, _: object, message: object) -> None:
        """Take a message of the server. The session whose process has crashed itself gets none."""
        if isinstance(message, asyncpg.CrashShutdownError):
            self.is_bystander = True

    async def begin(self, limit: timedelta) -> None:
        """Begin a transaction that the server ends after `limit` without a statement.

        The limit keeps the transaction of a stopped worker from blocking its successor for ever.
        """
        limit_ms = max(1, int(limit.total_seconds() * 1000))
        if self._is_lent:
            limited = f"set local idle_in_transaction_session_timeout = {limit_ms}"
            await self.connection.execute(f"begin; {limited}; {self._prove()}", timeout=BEGIN_S)
            return
        begun_at, self.begun_at = self.begun_at, None
        query = "begin"
        if limit_ms != self.limit_ms:  # in the same message, SET is part of the transaction
            query = f"begin; set idle_in_transaction_session_timeout = {limit_ms}"
        elif begun_at is not None and time.monotonic() - begun_at < AHEAD_S:
            return  # `commit` has set its proof
        query = f"{query}; {self._prove()}"
        if begun_at is not None:
            query = f"rollback; {query}"
        await self.connection.execute(query, timeout=BEGIN_S)
        self.limit_ms = limit_ms

    async def commit(self, last: str, *, chain: bool) -> None:
        """Run a last statement, commit, and reset the session, in one round trip.

        With `chain`, the next transaction is begun in the same round trip.
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
        """Roll back the transaction, and reset the session."""
        self.limit_ms = None  # it may have been set in this very transaction
        await self.connection.execute(f"rollback{self._forgetting}", timeout=ROLL_BACK_S)
        self.is_foreign = False

    def _prove(self) -> str:
        """Return a statement that marks the transaction with a new proof.

        Postgres forgets the proof when the transaction ends. SET, unlike SELECT, leaves the choice
        of the isolation level to the handler.
        """
        self.proof = token_hex(8)
        return f"set local gateway.transaction = '{self.proof}'"

    async def is_proven(self) -> bool:
        """Return whether the transaction is still the one that was begun here.

        Also true if that cannot be found out, because the transaction has failed or the connection
        is gone.
        """
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
        """Return whether the server refuses writes, or does not answer.

        Roll back first: the transaction itself may be read only because the handler made it so.
        """
        query = "select current_setting('transaction_read_only')::boolean"
        try:
            await self.roll_back()
            return bool(await self.connection.fetchval(query, timeout=ROLL_BACK_S))
        except TROUBLE:
            return True

    @property
    def _is_lent(self) -> bool:
        """Whether a pooler lends the server's session for one transaction only.

        In that case no transaction can be begun ahead, and no idle limit can be set for later ones.
        """
        return is_pooled(self.connection)

    @property
    def _forgetting(self) -> str:
        return f"; {forget_query(self.connection)}" if self.is_foreign else ""


class Sessions:
    """A connection pool for handlers: it keeps the connections in use and the recently used ones.

    asyncpg's pool sends a reset query whenever a connection is returned. Here the reset is sent
    with the end of the transaction, and only if it is needed, which saves a round trip.
    """

    def __init__(self, url: str, *, name: str, most: int = MOST, **server_settings: str) -> None:
        self._room = asyncio.Semaphore(most)
        """Limits the sessions in use. Idle sessions need no permit: no new one is opened while
        there is an idle one."""
        self._opener = Opener(
            url, name=name, command_timeout_s=None, isolation=None, **server_settings
        )
        self._idle: deque[Session] = deque()
        self._taken: set[Session] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def use(self) -> tuple[int, int]:
        """The number of sessions in use, and of idle ones."""
        return len(self._taken), len(self._idle)

    async def take(self) -> Session:
        """Return a session for exclusive use, as soon as one is free. Raises StorageUnavailable."""
        await self._room.acquire()
        try:
            session = self._newest_idle() or Session(await self._opener.reach())
        except BaseException:
            self._room.release()
            raise
        self._taken.add(session)
        return session

    def give_back(self, session: Session) -> None:
        """Return a session whose transaction has ended or whose next one was begun ahead."""
        self._leave(session)
        session.idle_since = time.monotonic()
        self._idle.append(session)
        if session.begun_at is not None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(AHEAD_S, self._end_unused)

    def drop_idle(self) -> None:
        """Close all idle sessions after one was found dead: the others may be dead, too."""
        while self._idle:
            self._idle.pop().connection.terminate()

    def drop(self, session: Session) -> None:
        """Close a session in any state. The server rolls back its transaction."""
        self._leave(session)
        session.connection.terminate()

    def _leave(self, session: Session) -> None:
        if session in self._taken:
            self._taken.remove(session)
            self._room.release()

    def _end_unused(self) -> None:
        """Roll back unused transactions that were begun ahead.

        An idle transaction would worry an operator who looks at the server.
        """
        self._timer = None
        for session in [s for s in self._idle if s.begun_at is not None]:
            task = asyncio.create_task(self._end(session))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end(self, session: Session) -> None:
        await self._room.acquire()
        if session not in self._idle:  # it was taken in the meantime
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
        """Close all connections, in use or not."""
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
            self.drop_idle()  # the newest one is too old, so the others are, too
        return None
