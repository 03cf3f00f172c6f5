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


async def test_a_newer_schema_that_only_adds_is_worked_with(empty_database_url: str) -> None:
    await migrate_at(empty_database_url)
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute(
        "insert into gateway.migrations values (9999, 'from_the_future', '', now(), $1)",
        len(NAMES),
    )
    await check_version(connection)
    assert await migrate(connection, ()) == ()
    await connection.execute("update gateway.migrations set oldest_code = oldest_code + 1")
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


async def test_the_second_migration_keeps_every_row_and_every_rule(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_migrations()[:1]
    with monkeypatch.context() as older:
        older.setattr("gateway.ledger.migrate.read_migrations", lambda: first)
        assert await migrate_at(empty_database_url) == ("0001_core",)
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute(
        "insert into gateway.deliveries (route, event_id, handler, status, lease_token)"
        " select 'stripe', status, 'h', status,"
        "        case when status = 'running' then gen_random_uuid() end"
        " from unnest(array['pending', 'running', 'done', 'dead', 'discarded']) as status;"
        "insert into gateway.attempts values (1, 1, now(), now(), 'retry', 'why')"
    )
    before = await connection.fetch("select * from gateway.deliveries order by id")
    assert list(await migrate_at(empty_database_url)) == NAMES[1:]
    await connection.reload_schema_state()
    after = await connection.fetch("select * from gateway.deliveries order by id")
    columns = list(before[0].keys())
    assert [[row[c] for c in columns] for row in after] == [list(row.values()) for row in before]
    assert await connection.fetchval("select outcome from gateway.attempts") == "retry"
    for query in (
        "update gateway.deliveries set status = 'lost'",
        "update gateway.attempts set outcome = 'pending'",
        "update gateway.deliveries set lease_token = null where status = 'running'",
        "update gateway.deliveries set status = 'pending' where status = 'running'",
    ):
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(query)
    token = await connection.fetchval(
        "select lease_token from gateway.deliveries where status = 'running'"
    )
    with pytest.raises(asyncpg.PostgresError, match="belongs to another run"):
        await connection.execute("select gateway.settle_done(2, gen_random_uuid())")
    await connection.execute("update gateway.deliveries set runs = 1, leased_at = now()")
    await connection.execute("select gateway.settle_done(2, $1)", token)
    assert await connection.fetchval("select status from gateway.deliveries where id = 2") == "done"
    await connection.close()
