"""Migrations: once, under a lock, forward only."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

from gateway.base.errors import CommandFailed, SchemaMismatch
from gateway.base.model import Retention
from gateway.ledger.connection import Connection
from gateway.ledger.deliveries import lease_due, replay
from gateway.ledger.migrate import (
    Migration,
    SchemaFile,
    check_version,
    migrate,
    read_migrations,
    read_schema,
)
from gateway.ledger.retention import Pruner
from tests.support.waiting import PATIENCE_S, until

NAMES = [migration.name for migration in read_migrations()]
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


async def _settle_done(connection: Connection, token: UUID) -> None:
    """Settle delivery 2 as any driver can."""
    async with connection.transaction():
        await connection.execute("select set_config('gateway.transaction', 'proof', true)")
        await connection.execute("select gateway.settle_done(2, $1, 'proof')", token)


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
async def first_url(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger at schema 1: the next migration locks `deliveries`, and then `attempts`."""
    first = read_migrations()[:1]
    with monkeypatch.context() as older:
        older.setattr("gateway.ledger.migrate.read_migrations", lambda: first)
        await migrate_at(empty_database_url)
    return empty_database_url


@pytest.fixture
async def reading(first_url: str) -> AsyncIterator[Connection]:
    """A session that holds what it has read, as `pg_dump` does until its end."""
    connection = await asyncpg.connect(
        first_url, server_settings={"application_name": "a long dump"}
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
    first_url: str, reading: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds `deliveries` by then, and would hold it for as long as the dump takes."""
    monkeypatch.setattr("gateway.ledger.migrate.LOCK_WAIT_S", 0.3)
    monkeypatch.setattr("gateway.ledger.migrate.PAUSE_S", 0.1)
    claiming = await asyncpg.connect(first_url)
    migrating = asyncio.create_task(migrate_at(first_url))
    for n in range(3):
        await until_it_waits(claiming)
        await claiming.execute(
            "insert into gateway.deliveries (route, event_id, handler) values ('a', $1, 'b')",
            str(n),
            timeout=10,
        )
    assert not migrating.done()
    await reading.execute("commit")
    assert list(await migrating) == NAMES[1:]
    assert await claiming.fetchval("select count(*) from gateway.deliveries") == 3
    await claiming.close()
    await reading.execute("begin")


async def test_a_migration_that_gets_no_lock_says_who_is_in_the_way_and_changes_nothing(
    first_url: str, reading: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.ledger.migrate.LOCK_WAIT_S", 0.05)
    monkeypatch.setattr("gateway.ledger.migrate.PATIENCE_S", 0.0)
    with pytest.raises(CommandFailed, match=r"0002_settle .*changed nothing: .*a long dump, for"):
        await migrate_at(first_url)
    assert await reading.fetchval("select max(version) from gateway.migrations") == 1
    assert await reading.fetchval("select to_regtype('gateway.delivery_status')") is None


async def test_a_migration_has_its_locks_before_it_works(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease holds `deliveries` and wants `processed_events`. Whoever works on these for minutes,
    and only then wants the others, has worked in vain, at every try."""
    await migrate_at(empty_database_url)
    long = Migration(version=len(NAMES) + 1, name="long", sql=LONG)
    known = (*read_migrations(), long)
    monkeypatch.setattr("gateway.ledger.migrate.read_migrations", lambda: known)
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


STATES = """
insert into gateway.processed_events
    (route, event_id, provider, type, received_at, digest, headers, body, key_id)
select 'stripe', status, 'stripe', 'invoice.paid', now() - interval '3 days', status::bytea,
       '{"a": "1"}',
       convert_to('body of ' || status, 'UTF8'), case when status = 'discarded' then 'k1' end
from unnest(array['pending', 'running', 'done', 'dead', 'discarded']) as status;
insert into gateway.processed_events (route, event_id, provider, type, received_at, digest, key_id)
values ('stripe', 'emptied', 'stripe', 'invoice.paid', now(), 'emptied', null),
       ('stripe', 'emptied_sealed', 'stripe', 'invoice.paid', now(), 'emptied_sealed', '');
insert into gateway.deliveries (route, event_id, handler, status, lease_token, runs, finished_at)
select 'stripe', status, 'h', status, case when status = 'running' then gen_random_uuid() end, 1,
       case when status in ('done', 'dead', 'discarded') then now() end
from unnest(array['pending', 'running', 'done', 'dead', 'discarded']) as status;
insert into gateway.attempts
    (delivery_id, number, started_at, finished_at, outcome, error, sealed, key_id)
select id, 1, now(), now(), 'retry', status, case when status = 'discarded' then 's'::bytea end,
       case when status = 'discarded' then 'k1' end
from gateway.deliveries;
"""
EVENTS = "select route, event_id, headers::text, body from {} order by event_id"
ATTEMPTS = (
    "select delivery_id, number, started_at, finished_at, outcome, error, sealed, key_id"
    " from gateway.attempts order by 1, 2"
)


async def test_partitions_keep_every_payload_and_every_attempt(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every state, emptied and sealed; and they are forgotten by their age, as before."""
    older = read_migrations()[:16]
    with monkeypatch.context() as before:
        before.setattr("gateway.ledger.migrate.read_migrations", lambda: older)
        await migrate_at(empty_database_url)
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute(STATES)
    events = await connection.fetch(EVENTS.format("gateway.processed_events"))
    attempts = await connection.fetch(ATTEMPTS)
    assert list(await migrate_at(empty_database_url)) == NAMES[16:]
    await connection.reload_schema_state()
    assert await connection.fetch(EVENTS.format("gateway.events")) == events
    assert await connection.fetch(ATTEMPTS) == attempts
    sealed = await connection.fetch("select event_id, key_id from gateway.events where sealed")
    assert {tuple(row) for row in sealed} == {("discarded", "k1"), ("emptied_sealed", None)}
    assert await connection.fetchval("select count(*) from gateway.payloads") == 5
    await replay(connection, 3, actor="ann", reason=None)
    kept = Retention(**dict.fromkeys(("key", "payload", "dead"), timedelta(days=2)))
    await connection.execute(
        "update gateway.deliveries set finished_at = now() - interval '3 days'"
        " where status = 'discarded'"
    )
    await Pruner({"stripe": kept}).step(connection)
    left = await connection.fetch("select event_id from gateway.payloads order by 1")
    assert [row["event_id"] for row in left] == ["dead", "done", "pending", "running"]
    assert await connection.fetchval("select count(*) from gateway.attempts") == 4
    await connection.close()
