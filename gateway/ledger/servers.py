"""Servers that a database URL leads to: several hosts, and poolers between."""

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from errno import ECONNREFUSED, EHOSTUNREACH, ENETUNREACH
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit, urlunsplit
from uuid import uuid4

import asyncpg

from gateway.base.networks import split_hosts

if TYPE_CHECKING:  # generic in its stubs only
    Opened = asyncpg.Connection[asyncpg.Record]
else:
    Opened = asyncpg.Connection

WANTED: Final = "target_session_attrs"
WRITABLE: Final = "read-write"
DEFAULT_PORT: Final = "5432"
ERRNO: Final = re.compile(r"\[Errno (\d+)\]")


async def connect_to_any(url: str, *, variable: str, timeout_s: float, **options: Any) -> Opened:
    """Connect to all servers at once and return the first connection that is suitable.

    asyncpg tries one after the other within one time limit: a first server that is cut off, and
    does not even refuse, would keep it from the second for good.

    Errors of the network name the host, the port and the variable that the URL was in.
    """
    urls = split_hosts(url)
    if len(urls) == 1:
        return await connect_to_one(url, variable=variable, timeout_s=timeout_s, **options)
    if WANTED not in url:
        options |= {WANTED: WRITABLE}
    attempts = [
        asyncio.ensure_future(
            connect_to_one(one, variable=variable, timeout_s=timeout_s, **options)
        )
        for one in urls
    ]
    chosen: Opened | None = None
    try:
        chosen = await _first(attempts)
        return chosen
    finally:
        for attempt in attempts:
            _give_up(attempt, chosen)


async def connect_to_one(url: str, *, variable: str, timeout_s: float, **options: Any) -> Opened:
    """Connect to one server. Every connection of the gateway to Postgres is opened here."""
    try:
        return await asyncpg.connect(url, timeout=timeout_s, **options)
    except ssl.SSLError:
        raise
    except OSError as error:  # and its subclass TimeoutError
        raise explain_failure(error, url, variable=variable, timeout_s=timeout_s) from error


def locate(url: str) -> str:
    """Return the host and the port of a URL, or the path of the socket, as asyncpg reads them."""
    parts, query = urlsplit(url), parse_qs(urlsplit(url).query)
    host = unquote(parts.hostname or "") or query.get("host", [""])[0]
    host = host or os.environ.get("PGHOST", "") or "localhost"
    port = str(parts.port or "") or query.get("port", [""])[0]
    port = port or os.environ.get("PGPORT", "") or DEFAULT_PORT
    if host.startswith("/"):
        return f"the socket {host}/.s.PGSQL.{port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def explain_failure(error: OSError, url: str, *, variable: str, timeout_s: float) -> OSError:
    """Return an error of the same class that says which server failed, and in which way."""
    where, reason = f"{locate(url)} ({variable})", error.strerror or str(error)
    numbers = {error.errno} if error.errno is not None else _numbers(error)
    if isinstance(error, TimeoutError):
        text = (
            f"{where} did not answer within {timeout_s:g} s. "
            "Is the address right, and does every firewall on the way let this host through?"
        )
    elif isinstance(error, socket.gaierror):
        text = f"{where}: the host name cannot be resolved ({reason})"
    elif isinstance(error, FileNotFoundError):
        text = f"{where} does not exist. Is Postgres running?"
    elif numbers == {ECONNREFUSED}:
        text = (
            f"{where} refused the connection: no server listens there. "
            "Is Postgres running, and is the port right?"
        )
    elif numbers and numbers <= {EHOSTUNREACH, ENETUNREACH}:
        text = f"{where} is unreachable from this host: {reason}"
    else:
        text = f"{where}: {reason}"
    return type(error)(text)


def _numbers(error: OSError) -> set[int]:
    """Return the error numbers of a host name with several addresses, all of which failed.

    asyncio writes them into the text of one error without a number.
    """
    return {int(number) for number in ERRNO.findall(str(error))}


async def _first(attempts: "Sequence[asyncio.Future[Opened]]") -> Opened:
    """Return the first connection.

    If all attempts fail, raise an error other than that of a standby.
    """
    waiting = set(attempts)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for attempt in done:
            if attempt.exception() is None:
                return attempt.result()
    failures = [failure for attempt in attempts if (failure := attempt.exception())]
    telling = [f for f in failures if not isinstance(f, asyncpg.TargetServerAttributeNotMatched)]
    unreached = [f for f in telling if isinstance(f, OSError) and not isinstance(f, ssl.SSLError)]
    if len(unreached) > 1 and len(unreached) == len(telling):
        raise type(unreached[0])("; ".join(map(str, unreached))) from unreached[0]
    raise (telling or failures)[0]


def _give_up(attempt: "asyncio.Future[Opened]", chosen: object) -> None:
    if not attempt.done():
        attempt.cancel()
    elif attempt.exception() is None and attempt.result() is not chosen:
        attempt.result().terminate()


if TYPE_CHECKING:  # generic in their stubs only
    Base = asyncpg.Connection[asyncpg.Record]
else:
    Base = asyncpg.Connection

MARKS: Final = frozenset({("pooler", "transaction"), ("pgbouncer", "true")})
"""Options in the query of a URL which say that there is a pooler, even if none is detected."""

UNSUPPORTED: Final = "unsupported startup parameter"
"""PgBouncer's error for settings that it could not reset for the next client."""

T = TypeVar("T")


class ThroughPooler(Base):
    """A connection on which each transaction may run in another session of the server.

    A setting of the session would affect the next client instead of this one. Therefore each
    transaction begins with the settings, and each statement outside of one gets its own
    transaction.
    """

    _told = ""
    _isolation = ""

    def demand(self, settings: Mapping[str, str], *, isolation: str | None = None) -> None:
        """Set these in every transaction from now on, in addition to the earlier ones.

        SET is no query, unlike a call of set_config: a handler can still set its isolation level.
        """
        told = [f"set local {name} = {_literal(name, value)}" for name, value in settings.items()]
        self._told = "; ".join(filter(None, [self._told, *told]))
        if isolation is not None:
            self._isolation = f"set transaction isolation level {isolation}"

    def _opening(self, begin: str = "") -> str:
        """Return the first statements of a transaction.

        A `begin` with an isolation level keeps it.
        """
        isolation = "" if "isolation" in begin.lower() else self._isolation
        return "; ".join(filter(None, [begin, isolation, self._told]))

    @property
    def _is_to_be_told(self) -> bool:
        """Whether the settings must be sent: only outside transactions, on an open connection."""
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
        """Run one statement as it would run on a session of its own."""
        if not self._is_to_be_told:
            return await run()
        try:
            return await self._in_transaction(query, run)
        # outside transactions asyncpg retries by itself
        except asyncpg.InvalidCachedStatementError:
            return await self._in_transaction(query, run)

    async def _in_transaction(self, query: str, run: Callable[[], Awaitable[T]]) -> T:
        await super().execute(self._opening("begin"))
        try:
            answer = await run()
        except (asyncpg.PostgresError, asyncpg.InterfaceError):
            if not self.is_closed():
                await super().execute("rollback")
            raise
        except BaseException:  # a timeout or a cancellation: the server may still be running it
            self.terminate()
            raise
        await super().execute(f"{_first_line(query)}commit")
        return answer


def is_pooled(connection: Base) -> TypeGuard[ThroughPooler]:
    """Return whether it is a ThroughPooler.

    isinstance does not work, because to asyncpg each connection is an instance of each class.
    """
    return type(connection) is ThroughPooler


async def is_direct(connection: Base, timeout_s: float) -> bool:
    """Return whether the session at the other end is the one that was logged in to.

    A pooler makes up the process id of its greeting, because it does not know yet which server it
    will lend.
    """
    query = f"select where pg_backend_pid() = {connection.get_server_pid():d}"
    return await connection.execute(query, timeout=timeout_s) == "SELECT 1"


async def keeps_statements(connection: Base) -> bool:
    """Return whether the pooler supports prepared statements (PgBouncer 1.21,
    max_prepared_statements).

    If it does, it renames them, because the names of its clients collide.
    """
    async with connection.transaction():
        prepared = await connection.prepare("select 1", name=f"gateway_{uuid4().hex}")
        name = prepared.get_name()  # asyncpg closes it when there is no reference to it any more
        found = "select count(*) from pg_prepared_statements where name = $1"
        is_ours: int = await connection.fetchval(found, name)
        if is_ours:
            await connection.execute(f"deallocate {name}")
        del prepared
    return not is_ours


def read_mark(url: str) -> tuple[str, bool]:
    """Return the URL as asyncpg accepts it, and whether it says that there is a pooler."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    others = [option for option in options if option not in MARKS]
    if len(others) == len(options):
        return url, False
    return urlunsplit(parts._replace(query=urlencode(others))), True


def _first_line(query: str) -> str:
    """Return the comment that names a statement (QUERIES). It shows in lists of lock holders."""
    line, separator, _ = query.partition("\n")
    return line + separator if line.startswith("--") else ""


def _literal(setting: str, value: str) -> str:
    """Return the value as SET takes it: a search_path is a list of identifiers already."""
    return value if setting == "search_path" else "'" + value.replace("'", "''") + "'"
