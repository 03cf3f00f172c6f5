"""A database that nobody gets into, for a while, on a server that others use too."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from tests.support.databases import on_database, run_sql


@asynccontextmanager
async def nobody_gets_in(database_url: str) -> AsyncIterator[None]:
    """As if Postgres were away: connections end, and new ones are refused."""
    name, server = urlsplit(database_url).path[1:], on_database(database_url, "postgres")
    await run_sql(
        server,
        f'alter database "{name}" allow_connections false',
        f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'",  # noqa: S608 (our own name)
    )
    try:
        yield
    finally:
        await run_sql(server, f'alter database "{name}" allow_connections true')
