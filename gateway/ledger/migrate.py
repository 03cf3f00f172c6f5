"""Numbered plain SQL, forward only, applied once under a lock.

Old and new processes run side by side while a new version is rolled out, so a migration adds first
and takes away only what no running code needs any more. Its file says which code that is, in a line
`-- oldest code: N`: code that was made for schema N or later goes on working with it.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

import asyncpg

from gateway.errors import CommandFailed, SchemaMismatch, StorageUnavailable
from gateway.ledger.connection import Connection, Pooled, describe, users_search_path

LOCK: Final = 0x67617465776179
"""The advisory lock that lets one process at a time migrate: "gateway" in ASCII."""

OLDEST_CODE: Final = re.compile(r"^-- oldest code: (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One file of migrations/."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def oldest_code(self) -> int:
        """The oldest schema version whose code still works with this one."""
        found = OLDEST_CODE.search(self.sql)
        return int(found[1]) if found else self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFile:
    """The user's own tables: idempotent SQL, applied anew at every migration."""

    path: Path
    sql: str


def read_schema(paths: Sequence[Path]) -> tuple[SchemaFile, ...]:
    """The user's schema files, read before anything is changed."""
    try:
        return tuple(SchemaFile(path=p, sql=p.read_text(encoding="utf-8")) for p in paths)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"a schema file cannot be read: {describe(error)}") from error


def read_migrations() -> tuple[Migration, ...]:
    """Every migration of this code, in order."""
    directory = files("gateway.ledger").joinpath("migrations")
    found = sorted(f.name for f in directory.iterdir() if f.name.endswith(".sql"))
    return tuple(
        Migration(
            version=int(name.partition("_")[0]),
            name=name.removesuffix(".sql"),
            sql=directory.joinpath(name).read_text(encoding="utf-8"),
        )
        for name in found
    )


async def migrate(connection: Connection, schema: Sequence[SchemaFile]) -> tuple[str, ...]:
    """Brings the ledger up to this code, then applies the user's own schema files.

    Safe when many start at once: the others wait, and find nothing left to do.
    """
    await connection.execute("select pg_advisory_lock($1)", LOCK, timeout=300)
    try:
        applied = await _apply(connection, read_migrations())
        for file in schema:
            await _apply_schema(connection, file)
    finally:
        await connection.execute("select pg_advisory_unlock($1)", LOCK)
    return applied


async def _apply(connection: Connection, migrations: Sequence[Migration]) -> tuple[str, ...]:
    await connection.execute(
        "create schema if not exists gateway;"
        "create table if not exists gateway.migrations ("
        "version integer primary key, name text not null, checksum text not null,"
        "applied_at timestamptz not null default now());"
        "alter table gateway.migrations add column if not exists oldest_code integer"
    )
    present = await applied_version(connection)
    await _check_newer(connection, present, migrations[-1].version)
    applied = []
    for migration in migrations[present:]:
        async with connection.transaction():
            await connection.execute(migration.sql, timeout=3600)
            await connection.execute(
                "insert into gateway.migrations (version, name, checksum, oldest_code)"
                " values ($1, $2, $3, $4)",
                migration.version,
                migration.name,
                migration.checksum,
                migration.oldest_code,
            )
        applied.append(migration.name)
    return tuple(applied)


async def _apply_schema(connection: Connection, file: SchemaFile) -> None:
    try:
        async with connection.transaction():
            path = await users_search_path(connection)
            await connection.execute("select set_config('search_path', $1, true)", path)
            await connection.execute(file.sql, timeout=3600)
    except asyncpg.PostgresError as error:
        line = _line(file.sql, getattr(error, "position", None))
        raise CommandFailed(f"{file.path}{line}: Postgres refused it: {describe(error)}") from error


def _line(sql: str, position: str | None) -> str:
    return "" if position is None else f":{sql.count(chr(10), 0, int(position)) + 1}"


async def applied_version(connection: Connection | Pooled) -> int:
    """The ledger's schema version; 0 where there is none."""
    if await connection.fetchval("select to_regclass('gateway.migrations')") is None:
        return 0
    version: int = await connection.fetchval(
        "select coalesce(max(version), 0) from gateway.migrations"
    )
    return version


async def check_version(connection: Connection) -> None:
    """Refuses a ledger that this code cannot work with."""
    if await connection.fetchval("select current_setting('transaction_read_only')") == "on":
        raise StorageUnavailable("Postgres is read-only: a standby, or set so")
    present, wanted = await applied_version(connection), read_migrations()[-1].version
    await _check_newer(connection, present, wanted)
    if present < wanted:
        raise SchemaMismatch(
            f"the database's gateway schema is at version {present}, this code needs {wanted}: "
            "run `gateway migrate`"
        )


async def _check_newer(connection: Connection, present: int, known: int) -> None:
    """Refuses a ledger that newer code has changed so that this code no longer fits."""
    if present <= known:
        return
    oldest_code: int = await connection.fetchval(
        "select max(coalesce(oldest_code, version)) from gateway.migrations"
    )
    if oldest_code > known:
        raise SchemaMismatch(
            f"the database's gateway schema is at version {present}, this code knows only {known}: "
            "upgrade the gateway"
        )
