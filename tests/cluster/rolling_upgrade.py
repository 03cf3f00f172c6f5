"""Three replicas of each process become another version under load, through PgBouncer and Sentinel.

`make cluster` runs it. No request fails, nothing is lost, nothing is applied twice.
"""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from gateway.ledger.migrate import read_migrations
from tests.support.ledger import Reader
from tests.support.ports import free_port
from tests.support.processes import Project, Serving
from tests.support.proxy import haproxy
from tests.support.rolling import Fleet, end, migrate, put_poolers_between, steady_load
from tests.support.versions import MIGRATIONS, REPOSITORY, add_migration, find_older, unpack
from tests.support.waiting import until

SIZE: Final = 3
SENDERS: Final = 3
ADDITION: Final = """-- A column of which older code knows nothing.
-- oldest code: {oldest}

alter table gateway.deliveries add column upgraded boolean not null default false;
"""


@pytest.fixture
def versions(tmp_path: Path) -> tuple[Path, Path]:
    """The code before and after the newest migration, if that one lets the older code live on.

    If not, or if there is no older code: this code, and this code with a migration more.
    """
    newest, directory = read_migrations()[-1], tmp_path / "version"
    older = find_older()
    if older is not None and newest.oldest_code < newest.version:
        return unpack(older, directory), REPOSITORY
    return REPOSITORY, add_migration(directory, ADDITION.format(oldest=newest.version))


@pytest.mark.timeout(600)
async def test_every_replica_is_upgraded_under_load_and_nobody_notices(
    versions: tuple[Path, Path],
    empty_database_url: str,
    redis_url: str,
    engine_dir: Path,
    tmp_path: Path,
) -> None:
    old_code, new_code = versions
    project = Project(tmp_path / "project", empty_database_url, redis_url)
    await migrate(project, old_code)
    ports = [free_port() for _ in range(SIZE)]
    with ExitStack() as stack:
        redis = put_poolers_between(project, stack, engine_dir)
        old, new = Fleet(project, stack, old_code), Fleet(project, stack, new_code)
        serving, workers = [old.serve(p) for p in ports], [old.worker() for _ in range(SIZE)]
        await asyncio.gather(*(each.ready() for each in serving))
        await asyncio.gather(*(each.says("worker_started") for each in workers))
        proxy, url = stack.enter_context(haproxy(project, ports))
        await Serving(proxy, url).ready()
        async with steady_load(url, SENDERS) as answers:
            await answers.grow()
            # Past PgBouncer: a migration holds a lock of its session.
            await migrate(project, new_code, GATEWAY_DATABASE_URL=empty_database_url)
            for port, one in zip(ports, serving, strict=True):
                await answers.grow()
                await end(one.running)
                await new.serve(port).ready()
            await asyncio.to_thread(redis.fail_over)
            for worker in workers:
                await answers.grow()
                await end(worker)
                await new.worker().says("worker_started")
            await answers.grow()
        assert answers.others == []
        await audit(empty_database_url, answers.accepted, newest(new_code))


async def audit(database_url: str, accepted: set[str], version: int) -> None:
    """Each that was accepted has one effect, at its first attempt."""
    connection = await asyncpg.connect(database_url)
    try:
        await look(Reader(connection), accepted, version)
    finally:
        await connection.close()


async def look(ledger: Reader, accepted: set[str], version: int) -> None:
    await until(lambda: all_done(ledger, len(accepted)), within_s=120)
    assert await ledger.value("select max(version) from gateway.migrations") == version
    effects = await ledger.rows("select event_id from public.effects")
    assert sorted(row["event_id"] for row in effects) == sorted(accepted)
    assert await ledger.value("select max(attempts) from gateway.deliveries") == 1
    assert set(await ledger.outcomes()) <= {"done", "released"}


async def all_done(ledger: Reader, n: int) -> bool:
    return await ledger.statuses() == {"done": n}


def newest(code: Path) -> int:
    return max(int(file.name[:4]) for file in (code / MIGRATIONS).glob("*.sql"))
