"""The schema that migrations produce, as text."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch
from uuid import uuid4

import asyncpg

from gateway.ledger.migrate import Migration, migrate, read_migrations
from tests.safeguards import Safeguard, cut
from tests.support.backups import tool
from tests.support.databases import drop, on_database, run_sql


def migrations_without(safeguard: Safeguard) -> tuple[Migration, ...]:
    """Return all migrations, the one with the safeguard's code without it."""
    file, text = cut(safeguard)
    return tuple(replace(m, sql=text) if m.name == file.stem else m for m in read_migrations())


async def dump_schema(url: str, migrations: Sequence[Migration]) -> str:
    """Apply the migrations to an empty database on that server, and return its schema."""
    name = f"schema_{uuid4().hex}"
    await run_sql(url, f'create database "{name}"')
    try:
        connection = await asyncpg.connect(on_database(url, name))
        try:
            with patch("gateway.ledger.migrate.read_migrations", lambda: migrations):
                await migrate(connection, ())
        finally:
            await connection.close()
        return _dump(on_database(url, name))
    finally:
        await drop(url, name)


def _dump(url: str) -> str:
    command = [tool("pg_dump"), "--schema-only", url]
    dump = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    # Newer releases add \restrict with a random key.
    return "\n".join(line for line in dump.splitlines() if not line.startswith("\\"))
