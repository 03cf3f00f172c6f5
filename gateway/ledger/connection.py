"""Connections to the ledger, and which of their errors mean what."""

import asyncio
from typing import TYPE_CHECKING, Final

import asyncpg
import asyncpg.pool

from gateway.errors import StorageUnavailable

if TYPE_CHECKING:  # generic in their stubs only
    Pool = asyncpg.Pool[asyncpg.Record]
    Connection = asyncpg.Connection[asyncpg.Record]
    Pooled = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
else:
    Pool = asyncpg.Pool
    Connection = asyncpg.Connection
    Pooled = asyncpg.pool.PoolConnectionProxy
Executor = Connection | Pooled | Pool

CONNECT_TIMEOUT_S: Final = 5.0
COMMAND_TIMEOUT_S: Final = 5.0
"""Under the usual lease and acknowledgement times: on a connection that is half dead nothing
answers, and only a new one helps."""

PREPARED_ONCE: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "jit": "off",
}
"""For connections that run only our own statements: planning one anew costs as much as running it.
Their plans do not depend on the arguments, nor on how small the tables were (a test reads them).
With a large backlog a plan looks costly enough to be compiled, which took 20 ms for each lease."""

FORGET: Final = "reset session authorization; discard temp;"
"""What asyncpg's own reset leaves: a role, and temporary tables that would shadow real ones."""

LOST: Final = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    TimeoutError,
)
"""The server is away, going away, or coming back: ask again."""

CONTENDED: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""Two transactions got in each other's way and this one was chosen to go: run it again."""

TROUBLE: Final = (*LOST, asyncpg.PostgresError)
"""Anything that Postgres or the way to it can answer with."""


async def connect(
    url: str,
    *,
    name: str,
    command_timeout_s: float | None = COMMAND_TIMEOUT_S,
    **server_settings: str,
) -> Connection:
    """One connection of our own, outside any pool."""
    try:
        connection: Connection = await asyncpg.connect(
            url,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=command_timeout_s,
            server_settings={"application_name": name, **server_settings},
        )
    except ValueError:  # asyncpg quotes pieces of the URL, and one of them may be the password
        raise StorageUnavailable("Postgres cannot be reached: its URL cannot be read") from None
    except TROUBLE as error:
        raise StorageUnavailable(f"Postgres cannot be reached: {describe(error)}") from error
    return connection


async def open_pool(
    url: str, *, name: str, size: int, command_timeout_s: float, **server_settings: str
) -> Pool:
    """A pool that connects when it is used, so that a process can start while Postgres is away."""
    return await asyncpg.create_pool(
        url,
        min_size=0,
        max_size=size,
        timeout=CONNECT_TIMEOUT_S,
        command_timeout=command_timeout_s,
        max_inactive_connection_lifetime=300,
        reset=_nothing_to_reset,
        server_settings={"application_name": name, **server_settings},
    )


async def _nothing_to_reset(_: Connection) -> None:
    """Our own statements leave nothing behind, and asking the server to be sure is a round trip."""


def forget_query(connection: Connection) -> str:
    """Makes a session as good as new."""
    return connection.get_reset_query() + FORGET


async def durable_settings(connection: Connection) -> dict[str, str]:
    """What makes a commit wait for the disk, where the database's own default is not to.

    Asked for first, since there are stricter defaults, too.
    """
    is_off = await connection.fetchval("select current_setting('synchronous_commit') = 'off'")
    return {"synchronous_commit": "on"} if is_off else {}


async def users_search_path(connection: Connection) -> str:
    """Where the user's own tables are looked for: never in the gateway's schema.

    By default Postgres looks first into a schema with the name of the role, and a role named
    "gateway" is an obvious choice.
    """
    schemas: list[str] = await connection.fetchval("select current_schemas(false)::text[]")
    theirs = [schema for schema in schemas if schema != "gateway"] or ["public"]
    return ", ".join('"' + schema.replace('"', '""') + '"' for schema in theirs)


def describe(error: BaseException) -> str:
    """The error in one line, with its class where the text alone says nothing."""
    text = " ".join(str(error).split())
    return text or type(error).__name__


async def close_quietly(connection: Connection | None) -> None:
    """Ends a connection that may be broken already."""
    if connection is None or connection.is_closed():
        return
    try:
        await asyncio.wait_for(connection.close(), timeout=1)
    except TROUBLE:
        connection.terminate()
