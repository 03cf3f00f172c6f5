"""Connections to the ledger, and the classification of their errors."""

import asyncio
import re
from collections.abc import Awaitable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar, cast

import asyncpg
import asyncpg.pool

from gateway.base.errors import StorageUnavailable
from gateway.base.networks import split_hosts
from gateway.http.tls import explain
from gateway.ledger.servers import (
    UNSUPPORTED,
    ThroughPooler,
    connect_to_any,
    is_direct,
    is_pooled,
    keeps_statements,
    locate,
    read_mark,
)

PACKAGE: Final = Path(__file__).parents[1]
_BLOCK: Final = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)


def read_queries() -> Mapping[str, str]:
    """Return each statement by its name, without its final semicolon.

    Statements stand beside the module that runs them, in a file with the module's name.
    """
    beside = (file for file in PACKAGE.rglob("*.sql") if file.with_suffix(".py").exists())
    texts = [file.read_text(encoding="utf-8") for file in beside]
    return MappingProxyType(
        {
            name: f"-- {name}\n{body.strip().removesuffix(';')}"
            for text in texts
            for name, body in _BLOCK.findall(text)
        }
    )


QUERIES: Final = read_queries()


if TYPE_CHECKING:  # generic in their stubs only
    Pool = asyncpg.Pool[asyncpg.Record]
    Connection = asyncpg.Connection[asyncpg.Record]
    Pooled = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
else:
    Pool = asyncpg.Pool
    Connection = asyncpg.Connection
    Pooled = asyncpg.pool.PoolConnectionProxy
Executor = Connection | Pooled | Pool
Opened = TypeVar("Opened", bound=Connection)

VARIABLE: Final = "GATEWAY_DATABASE_URL"
"""The variable that error messages name, unless the URL came from another one."""

CONNECT_TIMEOUT_S: Final = 5.0
COMMAND_TIMEOUT_S: Final = 5.0
"""Shorter than the usual lease and acknowledgement times: a half-dead connection never answers, and
only a new one helps."""

STATEMENTS: Final = 100
"""How many prepared statements a connection keeps, if it can keep any."""

PREPARED_ONCE: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "jit": "off",
}
"""For connections that run only the gateway's own statements: planning one costs as much as running
it. Their plans depend neither on the arguments nor on how small the tables were (a test reads
them). With a large backlog a plan seems expensive enough for JIT compilation, which took 20 ms per
lease."""

OWN_ISOLATION: Final = "read committed"
"""The isolation level of the gateway's own transactions, whatever the default of the database or
the role: their statements must see rows that others have committed since the transaction began."""

FORGET: Final = (
    "reset session authorization; discard temp; discard sequences; select gateway.forget_session();"
)
"""Reset the state that asyncpg's own reset query leaves: roles, temporary objects (which would
shadow real ones), the last values of sequences, prepared statements, the seed of random()."""

READ_ONLY: Final = (asyncpg.ReadOnlySQLTransactionError,)
"""The server is now a standby, and another server is the primary."""

MIXED_UP: Final = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
"""The session and the driver disagree about prepared statements: a pooler no longer keeps them, or
a handler has dropped the driver's. The connection cannot be used any more."""

LOST: Final = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    *READ_ONLY,
    *MIXED_UP,
    TimeoutError,
)
"""The server is away, shutting down or starting up: retry on a new connection."""

CONTENDED: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""Postgres chose this transaction as the victim of a conflict between two: run it again."""

TROUBLE: Final = (*LOST, asyncpg.PostgresError)
"""Any error of Postgres, or of the connection to it."""


class Opener:
    """Opens connections with equal settings, and remembers whether there is a pooler.

    With `isolation=None` transactions have the user's default, as those of handlers do.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        command_timeout_s: float | None = COMMAND_TIMEOUT_S,
        isolation: str | None = OWN_ISOLATION,
        variable: str = VARIABLE,
        **settings: str,
    ) -> None:
        self._variable = variable
        self._url, self._is_pooled = read_mark(url)
        self._isolation = isolation
        self._keeps_statements = False
        self._name = name
        self._command_timeout_s = command_timeout_s
        self._settings = settings

    async def reach(self) -> Connection:
        """Open a connection. Raises StorageUnavailable."""
        try:
            return await self.open()
        except OSError as error:  # the error names the server, unless it is a TLS error
            about_tls = explain(error)
            reason = describe(error) if about_tls is None else f"{self._where}: {about_tls}"
            raise StorageUnavailable(f"Postgres cannot be reached: {reason}") from error
        except ValueError:  # asyncpg quotes parts of the URL, and one of them may be the password
            reason = f"the URL in {self._variable} cannot be read"
            raise StorageUnavailable(f"Postgres cannot be reached: {reason}") from None
        except TROUBLE as error:
            raise StorageUnavailable(f"Postgres at {self._where}: {describe(error)}") from error

    async def open(self) -> Connection:
        """Open a connection, and raise the errors of asyncpg unchanged."""
        if not self._is_pooled:
            try:
                connection = await self._connect(Connection, STATEMENTS, self._direct_settings)
            except asyncpg.ProtocolViolationError as error:
                if UNSUPPORTED not in str(error):
                    raise
            else:
                if await self._try(connection, is_direct(connection, CONNECT_TIMEOUT_S)):
                    return connection
                await close_quietly(connection)
            self._is_pooled = True
        return await self._open_through_pooler()

    @property
    def _where(self) -> str:
        return f"{', '.join(map(locate, split_hosts(self._url)))} ({self._variable})"

    @property
    def _direct_settings(self) -> Mapping[str, str]:
        if self._isolation is None:
            return self._settings
        return {**self._settings, "default_transaction_isolation": self._isolation}

    async def _open_through_pooler(self) -> Connection:
        """Open a connection through the pooler.

        Each time it checks whether prepared statements are kept, because the pooler's configuration
        may have changed.
        """
        while True:
            statements = STATEMENTS if self._keeps_statements else 0
            connection = await self._connect(ThroughPooler, statements, {})
            keeps = await self._try(connection, keeps_statements(connection))
            if keeps == self._keeps_statements:
                connection.demand(self._settings, isolation=self._isolation)
                return connection
            self._keeps_statements = keeps
            await close_quietly(connection)

    async def _connect(
        self, kind: type[Opened], statements: int, settings: Mapping[str, str]
    ) -> Opened:
        connection = await connect_to_any(
            self._url,
            variable=self._variable,
            timeout_s=CONNECT_TIMEOUT_S,
            command_timeout=self._command_timeout_s,
            statement_cache_size=statements,
            connection_class=kind,
            server_settings={"application_name": self._name, **settings},
        )
        return cast("Opened", connection)

    async def _try(self, connection: Connection, question: Awaitable[bool]) -> bool:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await question
        except TimeoutError:
            connection.terminate()
            raise TimeoutError(
                f"{self._where} took the connection, and then did not answer within"
                f" {CONNECT_TIMEOUT_S:g} s"
            ) from None
        except BaseException:
            connection.terminate()
            raise


async def connect(
    url: str,
    *,
    name: str,
    command_timeout_s: float | None = COMMAND_TIMEOUT_S,
    isolation: str | None = OWN_ISOLATION,
    variable: str = VARIABLE,
    **settings: str,
) -> Connection:
    """Open one connection of the gateway's own, outside any pool."""
    opener = Opener(
        url,
        name=name,
        command_timeout_s=command_timeout_s,
        isolation=isolation,
        variable=variable,
        **settings,
    )
    return await opener.reach()


async def open_pool(
    url: str, *, name: str, size: int, command_timeout_s: float, **settings: str
) -> Pool:
    """Return a pool that connects on first use, so that a process can start without Postgres."""
    opener = Opener(url, name=name, command_timeout_s=command_timeout_s, **settings)

    async def open_one(*_: object, **__: object) -> Connection:
        return await opener.open()

    return await asyncpg.create_pool(
        connect=open_one,
        min_size=0,
        max_size=size,
        max_inactive_connection_lifetime=300,
        reset=_nothing_to_reset,
    )


async def _nothing_to_reset(_: Connection) -> None:
    """Skip the reset: our own statements leave no state behind, and a reset costs a round trip."""


def forget_query(connection: Connection) -> str:
    """Return the SQL that resets a session."""
    return connection.get_reset_query() + FORGET


async def durable_settings(connection: Connection) -> dict[str, str]:
    """Return the settings that make a commit wait for the disk, if the database's default does not.

    The default is read first, because there are stricter ones, too.
    """
    is_off = await connection.fetchval("select current_setting('synchronous_commit') = 'off'")
    return {"synchronous_commit": "on"} if is_off else {}


async def make_durable(connection: Connection) -> None:
    """Make the commits of a connection wait for the disk."""
    settings = await durable_settings(connection)
    if is_pooled(connection):
        connection.demand(settings)
        return
    for setting, value in settings.items():
        await connection.execute(f"set {setting} = {value}")


async def users_search_path(connection: Connection) -> str:
    """Return the search path for the user's own tables, which never contains the gateway's schema.

    By default Postgres first searches a schema with the name of the role, and a role named
    "gateway" is an obvious choice.
    """
    schemas: list[str] = await connection.fetchval("select current_schemas(false)::text[]")
    theirs = [schema for schema in schemas if schema != "gateway"] or ["public"]
    return ", ".join('"' + schema.replace('"', '""') + '"' for schema in theirs)


def describe(error: BaseException) -> str:
    """Return the error in one line, with its class if it has no text."""
    text = " ".join(str(error).split())
    return explain(error) or text or type(error).__name__


async def close_quietly(connection: Connection | None) -> None:
    """Close a connection that may already be broken."""
    if connection is None or connection.is_closed():
        return
    try:
        await asyncio.wait_for(connection.close(), timeout=1)
    except TROUBLE:
        connection.terminate()
