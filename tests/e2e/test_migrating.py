"""`gateway migrate`, killed in the middle: the ledger is as it was, and the next one goes on."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from gateway.ledger.connection import Connection
from gateway.ledger.migrate import migrate, read_migrations
from tests.support.processes import Project
from tests.support.waiting import until

MIGRATING = """
select count(*) from pg_stat_activity
where application_name = 'gateway migrate' and datname = current_database()
"""


@pytest.fixture
async def old(empty_database_url: str) -> AsyncIterator[Connection]:
    """A look into a ledger at schema 1, with a row."""
    connection = await asyncpg.connect(empty_database_url)
    first = read_migrations()[:1]
    with pytest.MonkeyPatch.context() as older:
        older.setattr("gateway.ledger.migrate.read_migrations", lambda: first)
        await migrate(connection, ())
    await connection.execute(
        "insert into gateway.deliveries (route, event_id, handler) values ('stripe', 'evt_1', 'h')"
    )
    yield connection
    await connection.close()


async def test_a_killed_migration_leaves_the_old_schema_and_the_next_one_goes_on(
    tmp_path: Path, empty_database_url: str, old: Connection, redis_url: str
) -> None:
    project = Project(tmp_path, empty_database_url, redis_url)

    async def migrating(having: str = "true") -> bool:
        return bool(await old.fetchval(f"{MIGRATING} and {having}"))

    async def gone() -> bool:
        return not await migrating()

    # It has made types and changed `deliveries` when it comes to `attempts`, and waits.
    holding = await asyncpg.connect(empty_database_url)
    async with holding.transaction():
        await holding.execute("lock table gateway.attempts in share mode")
        with project.process("migrate") as process:
            await until(lambda: migrating("wait_event_type = 'Lock' and wait_event = 'relation'"))
            process.kill()
    await holding.close()
    await until(gone)
    assert await old.fetchval("select max(version) from gateway.migrations") == 1
    assert await old.fetchval("select to_regtype('gateway.delivery_status')") is None
    told = await asyncio.to_thread(project.run, "migrate")
    assert told.returncode == 0, told.stderr
    assert "applied 0002_settle" in told.stdout
    assert await old.fetchval("select status::text from gateway.deliveries") == "pending"
    assert await old.fetchval("select count(*) from gateway.migrations") == len(read_migrations())
