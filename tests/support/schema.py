"""The schema that migrations produce, as text."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

import asyncpg

from gateway.dev.embedded import Postgres
from gateway.ledger.migrate import Migration, migrate, read_migrations
from gateway.testing.throwaway import fastest_place
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
        return dump(on_database(url, name))
    finally:
        await drop(url, name)


def dump(url: str) -> str:
    """Return the schema of a database as text."""
    command = [tool("pg_dump"), "--schema-only", url]
    dump = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    # Newer releases add \restrict with a random key.
    return "\n".join(line for line in dump.splitlines() if not line.startswith("\\"))


@contextmanager
def temporary_postgres() -> Iterator[str]:
    """A Postgres with nothing in it."""
    directory = Path(tempfile.mkdtemp(prefix="gateway-test-", dir=fastest_place()))
    directory.chmod(0o711)
    engine = Postgres(directory / "postgres", durable=False)
    try:
        engine.start()
        yield engine.url
    finally:
        engine.stop()
        shutil.rmtree(directory, ignore_errors=True)
