"""Fresh databases, cloned from a migrated template."""

from urllib.parse import urlsplit, urlunsplit

import asyncpg

TEMPLATE = "gateway_template"

EFFECTS = """
create table effects (
    n        bigint generated always as identity,
    event_id text not null,
    handler  text not null,
    note     text
);
create table orders (
    id       text primary key,
    status   text not null,
    details  jsonb,
    version  timestamptz
);
"""
"""Tables of an imaginary user. `effects` has no key: a second application shows."""


def on_database(url: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def run_sql(url: str, *statements: str) -> None:
    """Runs statements outside any transaction."""
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def drop(url: str, name: str) -> None:
    """Removes a database with whoever is still connected."""
    await run_sql(url, f'drop database if exists "{name}" with (force)')
