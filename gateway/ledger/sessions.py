"""Connections for handlers: taken as good as new, given back as good as new."""

import time
from collections import deque
from datetime import timedelta
from typing import Final

from gateway.ledger.connection import Connection, close_quietly, connect, forget_query

BEGIN_S: Final = 5.0
IDLE_S: Final = 300.0
"""A connection that was not needed for so long is closed."""


class Session:
    """One connection, and what is known of the state of its session."""

    __slots__ = ("connection", "idle_since", "is_foreign", "limit_ms")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.limit_ms: int | None = None
        self.is_foreign = False
        """Whether statements were run that are not ours: they may have changed the session."""
        self.idle_since = 0.0

    async def begin(self, limit: timedelta) -> None:
        """Opens a transaction that the server ends if nothing is heard of it for `limit`: that of
        a stopped worker must not block its successor for ever."""
        limit_ms = max(1, int(limit.total_seconds() * 1000))
        query = "begin"
        if limit_ms != self.limit_ms:
            query = f"set idle_in_transaction_session_timeout = {limit_ms}; begin"
        await self.connection.execute(query, timeout=BEGIN_S)
        self.limit_ms = limit_ms

    async def end(self, query: str, timeout_s: float | None = None) -> None:
        """Ends the transaction by this query, and makes the session as good as new."""
        if self.is_foreign:
            query = f"{query}; {forget_query(self.connection)}"
        await self.connection.execute(query, timeout=timeout_s)
        if self.is_foreign:
            self.limit_ms, self.is_foreign = None, False


class Sessions:
    """As many connections as are in use at once, and those that were lately.

    asyncpg's pool asks the server to reset a connection whenever it is given back. Here that goes
    along with the end of the transaction, where it is needed at all: it saves a round trip.
    """

    def __init__(self, url: str, *, name: str, **server_settings: str) -> None:
        self._url = url
        self._name = name
        self._server_settings = server_settings
        self._idle: deque[Session] = deque()
        self._taken: set[Session] = set()

    async def take(self) -> Session:
        """A session of the caller's own. Raises StorageUnavailable."""
        session = self._newest_idle()
        if session is None:
            session = Session(
                await connect(
                    self._url, name=self._name, command_timeout_s=None, **self._server_settings
                )
            )
        self._taken.add(session)
        return session

    def give_back(self, session: Session) -> None:
        """For a session whose transaction was ended."""
        self._taken.discard(session)
        session.idle_since = time.monotonic()
        self._idle.append(session)
        while self._idle[0].idle_since < session.idle_since - IDLE_S:
            self._idle.popleft().connection.terminate()

    def drop(self, session: Session) -> None:
        """For a session in any state: whatever it was doing is undone by the server."""
        self._taken.discard(session)
        session.connection.terminate()

    async def close(self) -> None:
        """Ends all connections, in use or not."""
        for session in self._taken:
            session.connection.terminate()
        while self._idle:
            await close_quietly(self._idle.pop().connection)

    def _newest_idle(self) -> Session | None:
        while self._idle:
            session = self._idle.pop()
            if not session.connection.is_closed():
                return session
        return None
