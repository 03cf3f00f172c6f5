"""Three replicas of each process become another version under load, through PgBouncer and Sentinel.

`make cluster` runs it. No request fails, nothing is lost, nothing is applied twice.
"""

import asyncio
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import asyncpg
import pytest

import gateway
from gateway.ledger.migrate import read_migrations
from tests.support.ledger import Reader
from tests.support.ports import free_port
from tests.support.processes import Project, Serving
from tests.support.proxy import haproxy
from tests.support.rolling import Fleet, end, put_poolers_between, steady_load
from tests.support.versions import NoHistory, find_older, has, unpack
from tests.support.waiting import until

SIZE: Final = 3
SENDERS: Final = 3
THROUGH_POOLERS: Final = "gateway/ledger/servers.py"
"""Code without this file does not know PgBouncer."""
ADDITION: Final = """-- A column of which older code knows nothing.
-- oldest code: {oldest}

alter table gateway.deliveries add column upgraded boolean not null default false;
"""


@pytest.fixture
def older(tmp_path: Path) -> Path | None:
    """The code before the newest migration, if that one lets it live on; None: there is none."""
    *_, before, newest = read_migrations()
    try:
        if newest.oldest_code > before.version or not has(find_older(), THROUGH_POOLERS):
            return None
        unpack(find_older(), tmp_path / "older")
    except NoHistory:
        return None
    return tmp_path / "older"


@pytest.fixture
def versions(older: Path | None, tmp_path: Path) -> tuple[Path, Path]:
    """The code before and after a migration: this one with a migration more, if need be."""
    package = Path(gateway.__file__).parent
    if older is not None:
        return older, package.parent
    newer = tmp_path / "newer"
    shutil.copytree(package, newer / "gateway")
    number = read_migrations()[-1].version
    file = newer / "gateway" / "ledger" / "migrations" / f"{number + 1:04}_addition.sql"
    file.write_text(ADDITION.format(oldest=number), encoding="utf-8")
    return package.parent, newer


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
    await migrate(project, old_code, empty_database_url)
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
            await migrate(project, new_code, empty_database_url)
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


async def migrate(project: Project, code: Path, database_url: str) -> None:
    """Past PgBouncer: a migration holds a lock of its session."""
    command = [sys.executable, "-m", "gateway", "migrate"]
    environ = {"PYTHONPATH": str(code), "GATEWAY_DATABASE_URL": database_url}
    with project.started(command, **environ) as running:
        assert await asyncio.to_thread(running.process.wait, 60) == 0, running.output


def newest(code: Path) -> int:
    files = (code / "gateway" / "ledger" / "migrations").glob("*.sql")
    return max(int(file.name[:4]) for file in files)
