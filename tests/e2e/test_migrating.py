"""`gateway migrate`, killed in the middle: the ledger is as it was, and the next one goes on."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from gateway.ledger.connection import Connection
from gateway.ledger.migrate import read_migrations
from tests.support.processes import Project
from tests.support.versions import add_migration
from tests.support.waiting import until

MIGRATING = """
select count(*) from pg_stat_activity
where application_name = 'gateway migrate' and datname = current_database()
"""


LATER = """alter table gateway.deliveries add column later integer;
alter table gateway.attempts add column later integer;
"""


@pytest.fixture
async def looking(database_url: str) -> AsyncIterator[Connection]:
    """A look into a ledger at the newest schema, with a row."""
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "insert into gateway.deliveries (route, event_id, handler) values ('stripe', 'evt_1', 'h')"
    )
    yield connection
    await connection.close()


async def test_a_killed_migration_leaves_the_old_schema_and_the_next_one_goes_on(
    tmp_path: Path, project: Project, looking: Connection
) -> None:
    newer = add_migration(tmp_path / "newer", LATER)
    migrate = [sys.executable, "-m", "gateway", "migrate"]
    version = read_migrations()[-1].version

    async def migrating(having: str = "true") -> bool:
        return bool(await looking.fetchval(f"{MIGRATING} and {having}"))

    async def gone() -> bool:
        return not await migrating()

    # It has locked `deliveries` when it comes to `attempts`, and waits.
    holding = await asyncpg.connect(project.environ["GATEWAY_DATABASE_URL"])
    async with holding.transaction():
        await holding.execute("lock table gateway.attempts in share mode")
        with project.started(migrate, PYTHONPATH=str(newer)) as process:
            await until(lambda: migrating("wait_event_type = 'Lock' and wait_event = 'relation'"))
            process.kill()
    await holding.close()
    await until(gone)
    assert await looking.fetchval("select max(version) from gateway.migrations") == version
    with project.started(migrate, PYTHONPATH=str(newer)) as process:
        assert await asyncio.to_thread(process.process.wait, 60) == 0, process.output
        assert f"applied {version + 1:04}_added" in process.output
    assert await looking.fetchval("select status::text from gateway.deliveries") == "pending"
    assert await looking.fetchval("select later from gateway.deliveries") is None
    assert await looking.fetchval("select max(version) from gateway.migrations") == version + 1
