"""Migrations: numbered plain SQL, forward only, applied once under a lock.

Old and new processes run side by side during a rolling upgrade, so a migration adds first, and
removes only things that no running code needs any more. Its file names that code in a line `--
oldest code: N`: code that was made for schema N or later still works with it.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final

import asyncpg
import structlog

from gateway.base.errors import CommandFailed, SchemaMismatch, StorageUnavailable
from gateway.ledger.connection import (
    CONTENDED,
    Connection,
    Pooled,
    describe,
    forget_query,
    users_search_path,
)

LOCK: Final = 0x67617465776179
"""The advisory lock that lets one process at a time migrate: "gateway" in ASCII."""

LOCK_WAIT_S: Final = 1.0
"""How long a step waits for each lock before it releases all that it holds. Other users of the
table queue behind it, including claims, whose senders wait for 3 s. A long `pg_dump` or a handler's
open transaction would otherwise delay them for as long as it takes."""
PAUSE_S: Final = 2.0
"""Time until the next try, in which the queued statements get through."""
PATIENCE_S: Final = 300.0
WORK_S: Final = 86_400.0
"""How long a step may work, and how long other migrating processes wait: minutes for millions of
rows."""

HINDERED: Final = (asyncpg.LockNotAvailableError, *CONTENDED)

OLDEST_CODE: Final = re.compile(r"^-- oldest code: (\d+)$", re.MULTILINE)
ALTERED: Final = re.compile(r"^(?:alter table|drop table|cluster) (gateway\.\w+)", re.MULTILINE)

log = structlog.get_logger("gateway.migrate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A file of migrations/."""

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

    @property
    def altered(self) -> tuple[str, ...]:
        """The tables that it locks exclusively, in the order of its text."""
        return tuple(dict.fromkeys(ALTERED.findall(self.sql)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFile:
    """A file of the user's own tables: idempotent SQL, applied again at every migration."""

    path: Path
    sql: str


def read_schema(paths: Sequence[Path]) -> tuple[SchemaFile, ...]:
    """Read the user's schema files, before anything is changed."""
    try:
        return tuple(SchemaFile(path=p, sql=p.read_text(encoding="utf-8")) for p in paths)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"a schema file cannot be read: {describe(error)}") from error


def read_migrations() -> tuple[Migration, ...]:
    """Return every migration of this code, in order."""
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
    """Migrate the ledger to this code's version, then apply the user's own schema files.

    Concurrent calls are safe: the others wait, and find nothing left to do.
    """
    applied = await _apply(connection, read_migrations())
    for file in schema:
        await _apply_schema(connection, file)
    return applied


async def _apply(connection: Connection, migrations: Sequence[Migration]) -> tuple[str, ...]:
    present = await applied_version(connection)
    _check_older(present, migrations)
    await _check_newer(connection, present, migrations[-1].version)
    if not present:
        async with _alone(connection):
            await connection.execute(
                "create schema if not exists gateway;"
                "create table if not exists gateway.migrations ("
                "version integer primary key, name text not null, checksum text not null,"
                "applied_at timestamptz not null default now(), oldest_code integer)"
            )
    return tuple(
        [
            migration.name
            for migration in migrations
            if migration.version > present
            and await _in_one_commit(
                connection, migration.name, partial(_apply_one, connection, migration)
            )
        ]
    )


@asynccontextmanager
async def _alone(connection: Connection) -> AsyncIterator[None]:
    """Begin a transaction that holds the migration lock.

    The lock ends with the transaction, so that it also works through a pooler, which lends a
    session for one transaction only.
    """
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", LOCK, timeout=WORK_S)
        yield


async def _apply_one(connection: Connection, migration: Migration) -> bool:
    """Apply one migration. Return False if it was applied already."""
    if await applied_version(connection) >= migration.version:
        return False
    await _lock_altered(connection, migration)
    await connection.execute(migration.sql, timeout=WORK_S)
    await connection.execute(
        "insert into gateway.migrations (version, name, checksum, oldest_code)"
        " values ($1, $2, $3, $4)",
        migration.version,
        migration.name,
        migration.checksum,
        migration.oldest_code,
    )
    return True


async def _lock_altered(connection: Connection, migration: Migration) -> None:
    """Lock all altered tables at once, before the work.

    A migration that requested its last lock only after minutes might find it held by a transaction
    that waits for the first one, and would have worked in vain.
    """
    present = [
        row["name"]
        for row in await connection.fetch(
            "select name from unnest($1::text[]) with ordinality as t (name, n)"
            " where to_regclass(name) is not null order by n",
            migration.altered,
        )
    ]
    if present:
        await connection.execute(f"lock table {', '.join(present)} in access exclusive mode")


async def _in_one_commit(
    connection: Connection, name: str, step: Callable[[], Awaitable[bool]]
) -> bool:
    """Run a step in one commit, with a short lock timeout, and retry until it gets its locks."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            async with _alone(connection):
                await connection.execute(f"set local lock_timeout = '{LOCK_WAIT_S}s'")
                return await step()
        except HINDERED as error:
            others = await _oldest_transactions(connection)
            if time.monotonic() > give_up_at:
                raise CommandFailed(
                    f"{name} could not be applied within {PATIENCE_S:g} s, and changed nothing:"
                    f" other sessions hold what it has to lock ({others}); end them or wait for"
                    " them, then run `gateway migrate` again"
                ) from error
            log.warning("migration_waits", migration=name, others=others, again_in_s=PAUSE_S)
        await asyncio.sleep(PAUSE_S)


async def _oldest_transactions(connection: Connection) -> str:
    """Describe the oldest transactions, which probably hold the locks.

    Their statements are not shown, because they may contain anything.
    """
    found = await connection.fetch(
        "select pid, coalesce(nullif(application_name, ''), 'no name') as name,"
        " extract(epoch from clock_timestamp() - xact_start)::integer as age_s"
        " from pg_stat_activity where datname = current_database() and xact_start is not null"
        " and pid <> pg_backend_pid() order by xact_start limit 3"
    )
    return (
        "; ".join(f"pid {r['pid']}, {r['name']}, for {r['age_s']} s" for r in found)
        or "none that this role can see"
    )


async def _apply_schema(connection: Connection, file: SchemaFile) -> None:
    async def apply() -> bool:
        path = await users_search_path(connection)
        await connection.execute("select set_config('search_path', $1, true)", path)
        await connection.execute(file.sql, timeout=WORK_S)
        # Session settings of the file (a dump has some) must affect neither the next file nor the
        # next client of a pooler.
        await connection.execute(forget_query(connection))
        return True

    try:
        await _in_one_commit(connection, str(file.path), apply)
    except asyncpg.PostgresError as error:
        line = _line(file.sql, getattr(error, "position", None))
        raise CommandFailed(f"{file.path}{line}: Postgres refused it: {describe(error)}") from error


def _line(sql: str, position: str | None) -> str:
    return "" if position is None else f":{sql.count(chr(10), 0, int(position)) + 1}"


async def applied_version(connection: Connection | Pooled) -> int:
    """Return the ledger's schema version, or 0 if there is no schema."""
    if await connection.fetchval("select to_regclass('gateway.migrations')") is None:
        return 0
    version: int = await connection.fetchval(
        "select coalesce(max(version), 0) from gateway.migrations"
    )
    return version


async def check_version(connection: Connection) -> None:
    """Raise an error if this code cannot work with the ledger."""
    if await connection.fetchval("select current_setting('transaction_read_only')") == "on":
        raise StorageUnavailable("Postgres is read-only: a standby, or set so")
    migrations, present = read_migrations(), await applied_version(connection)
    wanted = migrations[-1].version
    _check_older(present, migrations)
    await _check_newer(connection, present, wanted)
    if present < wanted:
        raise SchemaMismatch(
            f"the database's gateway schema is at version {present}, this code needs {wanted}: "
            "run `gateway migrate`"
        )


def _check_older(present: int, migrations: Sequence[Migration]) -> None:
    """Raise an error if the schema is older than the first migration, which creates all of it."""
    first = migrations[0].version
    if 0 < present < first:
        raise SchemaMismatch(
            f"the database's gateway schema is at version {present}, which was never released and"
            f" cannot be upgraded to {first}: start with an empty database (docs/releases.md says"
            " how), or go on with the code of that schema"
        )


async def _check_newer(connection: Connection, present: int, known: int) -> None:
    """Raise an error if newer code has changed the ledger so that this code no longer fits."""
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
