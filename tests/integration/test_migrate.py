"""Migrations: once, under a lock, forward only."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from gateway.errors import CommandFailed, SchemaMismatch
from gateway.ledger.migrate import (
    SchemaFile,
    check_version,
    migrate,
    read_migrations,
    read_schema,
)

NAMES = [migration.name for migration in read_migrations()]


async def migrate_at(url: str, *schema: SchemaFile) -> tuple[str, ...]:
    connection = await asyncpg.connect(url)
    try:
        return await migrate(connection, schema)
    finally:
        await connection.close()


async def test_ten_that_start_at_once_apply_each_migration_once(empty_database_url: str) -> None:
    applied = await asyncio.gather(*(migrate_at(empty_database_url) for _ in range(10)))
    assert sorted(name for names in applied for name in names) == NAMES


async def test_migrating_again_changes_nothing(empty_database_url: str) -> None:
    assert list(await migrate_at(empty_database_url)) == NAMES
    assert await migrate_at(empty_database_url) == ()


async def test_a_newer_schema_than_the_code_is_refused(empty_database_url: str) -> None:
    await migrate_at(empty_database_url)
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute("insert into gateway.migrations values (9999, 'from_the_future', '')")
    with pytest.raises(SchemaMismatch, match="upgrade the gateway"):
        await migrate(connection, ())
    with pytest.raises(SchemaMismatch, match="upgrade the gateway"):
        await check_version(connection)
    await connection.close()


async def test_a_database_that_was_never_migrated_is_refused(empty_database_url: str) -> None:
    connection = await asyncpg.connect(empty_database_url)
    with pytest.raises(SchemaMismatch, match="run `gateway migrate`"):
        await check_version(connection)
    await connection.close()


async def test_the_users_schema_is_applied_every_time_and_outside_ours(
    empty_database_url: str,
) -> None:
    """The suite's role is called gateway: Postgres alone would put the table into our schema."""
    tables = SchemaFile(
        path=Path("schema.sql"), sql="create table if not exists mine (id int primary key);"
    )
    await migrate_at(empty_database_url, tables)
    await migrate_at(empty_database_url, tables)
    connection = await asyncpg.connect(empty_database_url)
    assert await connection.fetchval("select current_user") == "gateway"
    assert await connection.fetchval("select to_regclass('public.mine')") is not None
    await connection.close()


async def test_an_error_in_the_users_schema_names_file_and_line(empty_database_url: str) -> None:
    broken = SchemaFile(
        path=Path("handlers/schema.sql"), sql="create table a (id int);\n\ncreate tabel b ();\n"
    )
    with pytest.raises(
        CommandFailed, match=r"handlers/schema\.sql:3: Postgres refused it"
    ) as error:
        await migrate_at(empty_database_url, broken)
    assert "tabel" in str(error.value)
    connection = await asyncpg.connect(empty_database_url)
    assert await connection.fetchval("select to_regclass('a')") is None
    await connection.close()


def test_a_schema_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"missing\.sql"):
        read_schema([tmp_path / "missing.sql"])


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [m.version for m in read_migrations()] == list(range(1, len(NAMES) + 1))
