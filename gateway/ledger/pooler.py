"""Connections through a pooler that lends a server for one transaction: PgBouncer and its like."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from uuid import uuid4

import asyncpg

if TYPE_CHECKING:  # generic in their stubs only
    Base = asyncpg.Connection[asyncpg.Record]
else:
    Base = asyncpg.Connection

MARKS: Final = frozenset({("pooler", "transaction"), ("pgbouncer", "true")})
"""In the query of a URL: there is a pooler, though it may look as if there were none."""

UNSUPPORTED: Final = "unsupported startup parameter"
"""What PgBouncer says of settings that it could not give back to the next client."""

T = TypeVar("T")


class ThroughPooler(Base):
    """A connection whose transactions may each be with another session of the server.

    What is set for a session would be set for whoever comes next, and not for us. So every
    transaction is told what we want, and every statement of ours outside one is one.
    """

    _told = ""
    _isolation = ""

    def demand(self, settings: Mapping[str, str], *, isolation: str | None = None) -> None:
        """Set these in every transaction from now on, beside what is set already.

        SET is no query, unlike a call of set_config: a handler can still set its isolation level.
        """
        told = [f"set local {name} = {_literal(name, value)}" for name, value in settings.items()]
        self._told = "; ".join(filter(None, [self._told, *told]))
        if isolation is not None:
            self._isolation = f"set transaction isolation level {isolation}"

    def _opening(self, begin: str = "") -> str:
        """Return what comes first in a transaction. A `begin` that names an isolation level keeps
        it."""
        isolation = "" if "isolation" in begin.lower() else self._isolation
        return "; ".join(filter(None, [begin, isolation, self._told]))

    @property
    def _is_to_be_told(self) -> bool:
        """Not what is in a transaction already, nor where there is nobody any more to tell."""
        is_any = bool(self._told or self._isolation)
        return is_any and not self.is_closed() and not self.is_in_transaction()

    async def execute(self, query: str, *args: Any, **options: Any) -> str:
        run = super().execute
        if args:
            return await self._alone(query, lambda: run(query, *args, **options))
        if self._is_to_be_told:
            begin, separator, rest = query.partition(";")
            if begin.lower().startswith("begin"):
                query = f"{self._opening(begin)}{separator}{rest}"
            else:  # one transaction by itself
                query = f"{self._opening()}; {query}"
        return await run(query, **options)

    async def executemany(self, command: str, *args: Any, **options: Any) -> None:
        run = super().executemany
        await self._alone(command, lambda: run(command, *args, **options))

    async def fetch(self, query: str, *args: Any, **options: Any) -> list[asyncpg.Record]:  # type: ignore[override]  # without the overloads for record classes
        run = super().fetch
        return await self._alone(query, lambda: run(query, *args, **options))

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> asyncpg.Record | None:  # type: ignore[override]  # likewise
        run = super().fetchrow
        return await self._alone(query, lambda: run(query, *args, **options))

    async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
        run = super().fetchval
        return await self._alone(query, lambda: run(query, *args, **options))

    async def _alone(self, query: str, run: Callable[[], Awaitable[T]]) -> T:
        """Runs one statement as it would run on a session of our own."""
        if not self._is_to_be_told:
            return await run()
        try:
            return await self._in_transaction(query, run)
        except asyncpg.InvalidCachedStatementError:  # outside transactions asyncpg does so itself
            return await self._in_transaction(query, run)

    async def _in_transaction(self, query: str, run: Callable[[], Awaitable[T]]) -> T:
        await super().execute(self._opening("begin"))
        try:
            answer = await run()
        except (asyncpg.PostgresError, asyncpg.InterfaceError):
            if not self.is_closed():
                await super().execute("rollback")
            raise
        except BaseException:  # a time-out, a cancellation: the server may still be at it
            self.terminate()
            raise
        await super().execute(f"{_first_line(query)}commit")
        return answer


def is_pooled(connection: Base) -> TypeGuard[ThroughPooler]:
    """Whether it is one of these. (To asyncpg, each connection is an instance of each class.)"""
    return type(connection) is ThroughPooler


async def is_direct(connection: Base, timeout_s: float) -> bool:
    """Whether the session at the other end is the one that was logged in to: a pooler makes up the
    process id that it greets with, since it does not know yet which server it will lend."""
    query = f"select where pg_backend_pid() = {connection.get_server_pid():d}"
    return await connection.execute(query, timeout=timeout_s) == "SELECT 1"


async def keeps_statements(connection: Base) -> bool:
    """Whether the pooler knows prepared statements (PgBouncer 1.21, max_prepared_statements): it
    gives them names of its own then, since those of its clients collide."""
    async with connection.transaction():
        prepared = await connection.prepare("select 1", name=f"gateway_{uuid4().hex}")
        name = prepared.get_name()  # and it is closed when nobody refers to it any more
        found = "select count(*) from pg_prepared_statements where name = $1"
        is_ours: int = await connection.fetchval(found, name)
        if is_ours:
            await connection.execute(f"deallocate {name}")
        del prepared
    return not is_ours


def read_mark(url: str) -> tuple[str, bool]:
    """The URL as asyncpg knows it, and whether it says that there is a pooler."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    others = [option for option in options if option not in MARKS]
    if len(others) == len(options):
        return url, False
    return urlunsplit(parts._replace(query=urlencode(others))), True


def _first_line(query: str) -> str:
    """The line that says what a statement is, also to who looks at what holds locks (QUERIES)."""
    line, separator, _ = query.partition("\n")
    return line + separator if line.startswith("--") else ""


def _literal(setting: str, value: str) -> str:
    """Return the value as SET takes it: a search_path is a list of identifiers already."""
    return value if setting == "search_path" else "'" + value.replace("'", "''") + "'"
