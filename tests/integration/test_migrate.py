"""Migrations: once, under a lock, forward only."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

from gateway.base.errors import CommandFailed, SchemaMismatch
from gateway.ledger.connection import Connection
from gateway.ledger.deliveries import lease_due
from gateway.ledger.migrate import (
    Migration,
    SchemaFile,
    check_version,
    migrate,
    read_migrations,
    read_schema,
)
from tests.support.waiting import PATIENCE_S, until

KNOWN = read_migrations()
NAMES = [migration.name for migration in KNOWN]
NEWEST = KNOWN[-1].version
LATER = Migration(
    version=NEWEST + 1,
    name="later",
    sql="create type gateway.later as enum ('a');"
    "\nalter table gateway.deliveries add column later gateway.later;"
    "\nalter table gateway.attempts add column later gateway.later;",
)
"""A migration that locks `deliveries`, and then `attempts`."""
WAITING = """
select exists (select from pg_locks where not granted
               and database = (select oid from pg_database where datname = current_database()))
"""


LONG = """
alter table gateway.processed_events add column long integer;
select pg_sleep(1.5);  -- deadlocks are looked for after a second, once
alter table gateway.deliveries add column long integer;
"""


async def lease_forever(url: str) -> None:
    """As through a pooler that keeps no prepared statements: each is read anew, with its locks in
    the order in which it names the tables."""
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        while True:
            await lease_due(connection, 1, [("stripe", "h")], timedelta(seconds=30))
            await asyncio.sleep(0.05)
    finally:
        await connection.close()


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


def know(monkeypatch: pytest.MonkeyPatch, *later: Migration) -> None:
    """Give the code these migrations after its own."""
    known = (*KNOWN, *later)
    monkeypatch.setattr("gateway.ledger.migrate.read_migrations", lambda: known)


async def test_migrations_are_selected_by_version(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate_at(empty_database_url)
    know(monkeypatch, replace(LATER, version=NEWEST + 5))
    assert await migrate_at(empty_database_url) == ("later",)
    assert await migrate_at(empty_database_url) == ()


async def test_a_schema_from_before_the_baseline_is_refused_with_what_to_do(
    empty_database_url: str,
) -> None:
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute(
        "create schema gateway; create table gateway.migrations (version integer primary key);"
        "insert into gateway.migrations select generate_series(1, 32)"
    )
    for refused in (migrate(connection, ()), check_version(connection)):
        with pytest.raises(
            SchemaMismatch, match=r"version 32, .*to 33: start with an empty database"
        ):
            await refused
    assert await connection.fetchval("select max(version) from gateway.migrations") == 32
    assert await connection.fetchval("select to_regclass('gateway.deliveries')") is None
    await connection.close()


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
        NEWEST,
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
    first = KNOWN[0].version
    assert [m.version for m in KNOWN] == list(range(first, first + len(KNOWN)))


async def _settle_done(connection: Connection, token: UUID) -> None:
    """Settle delivery 2 as any driver can."""
    async with connection.transaction():
        await connection.execute("select set_config('gateway.transaction', 'proof', true)")
        await connection.execute("select gateway.settle_done(2, $1, 'proof')", token)


async def test_a_delivery_changes_only_by_the_rules_of_the_schema(
    empty_database_url: str,
) -> None:
    await migrate_at(empty_database_url)
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute(
        "insert into gateway.deliveries (route, event_id, handler, status, lease_token)"
        " select 'stripe', status, 'h', status,"
        "        case when status = 'running' then gen_random_uuid() end"
        " from unnest(array['pending', 'running', 'done', 'dead', 'discarded']) as status;"
        "insert into gateway.attempts values (1, 1, now(), now(), 'retry', 'why')"
    )
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
    await connection.execute("update gateway.deliveries set runs = 1, leased_at = now()")
    for proof in (None, "", "another"):
        with pytest.raises(asyncpg.PostgresError, match="not the transaction"):
            await connection.execute("select gateway.settle_done(2, $1, $2)", token, proof)
    with pytest.raises(asyncpg.PostgresError, match="belongs to another run"):
        await _settle_done(connection, uuid4())
    await _settle_done(connection, token)
    assert await connection.fetchval("select status from gateway.deliveries where id = 2") == "done"
    await connection.close()


@pytest.fixture
async def migrated_url(empty_database_url: str) -> str:
    await migrate_at(empty_database_url)
    return empty_database_url


@pytest.fixture
async def reading(migrated_url: str) -> AsyncIterator[Connection]:
    """A session that holds what it has read, as `pg_dump` does until its end."""
    connection = await asyncpg.connect(
        migrated_url, server_settings={"application_name": "a long dump"}
    )
    async with connection.transaction():
        await connection.execute("select from gateway.attempts")
        yield connection
    await connection.close()


async def until_it_waits(looking: Connection) -> None:
    async def waits() -> bool:
        is_so: bool = await looking.fetchval(WAITING)
        return is_so

    await until(waits)


async def test_a_migration_that_waits_for_a_lock_lets_claims_pass(
    migrated_url: str, reading: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds `deliveries` by then, and would hold it for as long as the dump takes."""
    monkeypatch.setattr("gateway.ledger.migrate.LOCK_WAIT_S", 0.3)
    monkeypatch.setattr("gateway.ledger.migrate.PAUSE_S", 0.1)
    know(monkeypatch, LATER)
    claiming = await asyncpg.connect(migrated_url)
    migrating = asyncio.create_task(migrate_at(migrated_url))
    for n in range(3):
        await until_it_waits(claiming)
        await claiming.execute(
            "insert into gateway.deliveries (route, event_id, handler) values ('a', $1, 'b')",
            str(n),
            timeout=10,
        )
    assert not migrating.done()
    await reading.execute("commit")
    assert await migrating == ("later",)
    assert await claiming.fetchval("select count(*) from gateway.deliveries") == 3
    await claiming.close()
    await reading.execute("begin")


async def test_a_migration_that_gets_no_lock_says_who_is_in_the_way_and_changes_nothing(
    migrated_url: str, reading: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.ledger.migrate.LOCK_WAIT_S", 0.05)
    monkeypatch.setattr("gateway.ledger.migrate.PATIENCE_S", 0.0)
    know(monkeypatch, LATER)
    with pytest.raises(CommandFailed, match=r"later .*changed nothing: .*a long dump, for"):
        await migrate_at(migrated_url)
    assert await reading.fetchval("select max(version) from gateway.migrations") == NEWEST
    assert await reading.fetchval("select to_regtype('gateway.later')") is None


async def test_a_migration_has_its_locks_before_it_works(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease holds `deliveries` and wants `processed_events`. Whoever works on these for minutes,
    and only then wants the others, has worked in vain, at every try."""
    await migrate_at(empty_database_url)
    know(monkeypatch, Migration(version=NEWEST + 1, name="long", sql=LONG))
    monkeypatch.setattr("gateway.ledger.migrate.LOCK_WAIT_S", 0.3)
    monkeypatch.setattr("gateway.ledger.migrate.PAUSE_S", 0.1)
    monkeypatch.setattr("gateway.ledger.migrate.PATIENCE_S", 5.0)
    leasing = asyncio.create_task(lease_forever(empty_database_url))
    try:
        assert await migrate_at(empty_database_url) == ("long",)
        assert not leasing.done()
    finally:
        leasing.cancel()
        await asyncio.wait([leasing])


async def test_nothing_to_do_waits_for_nobody(empty_database_url: str) -> None:
    """A process that starts beside a dump finds the ledger as it should be, and touches nothing."""
    await migrate_at(empty_database_url)
    connection = await asyncpg.connect(empty_database_url)
    async with connection.transaction():
        await connection.execute("select from gateway.migrations")
        assert await asyncio.wait_for(migrate_at(empty_database_url), PATIENCE_S) == ()
    await connection.close()
