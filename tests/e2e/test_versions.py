"""Older code beside this one, on the newer schema: as in a rolling upgrade."""

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from gateway.ledger.migrate import read_migrations
from tests.support.ledger import Reader
from tests.support.needs import lacks
from tests.support.ports import free_port
from tests.support.processes import Project, stripe_request
from tests.support.rolling import Fleet, migrate
from tests.support.versions import REPOSITORY, NoHistory, add_migration, find_older, unpack
from tests.support.waiting import PATIENCE_S, until

NEWEST: Final = read_migrations()[-1]
ADDING: Final = f"""-- A column of which older code knows nothing.
-- oldest code: {NEWEST.version}

alter table gateway.deliveries add column upgraded boolean not null default false;
"""
CHANGING: Final = """-- A column that older code still writes.

alter table gateway.deliveries drop column added cascade;
"""
GATEWAY: Final = [sys.executable, "-m", "gateway"]


async def test_old_and_new_processes_share_a_ledger_to_which_a_migration_only_added(
    project: Project, ledger: Reader, tmp_path: Path
) -> None:
    await share(REPOSITORY, add_migration(tmp_path / "newer", ADDING), project, ledger)


async def test_old_processes_say_why_they_do_not_work_on_a_ledger_that_a_migration_has_changed(
    project: Project, ledger: Reader, tmp_path: Path
) -> None:
    await refuse(REPOSITORY, add_migration(tmp_path / "newer", CHANGING), project, ledger)


async def test_the_code_before_the_newest_migration_works_beside_this_one_or_says_why_not(
    project: Project, ledger: Reader, tmp_path: Path
) -> None:
    try:
        commit = find_older()
    except NoHistory:
        lacks("the git history of this repository")
    if commit is None:
        assert [m.name for m in read_migrations()] == ["0033_baseline"], "no predecessor yet"
        return
    older = unpack(commit, tmp_path / "older")
    may_share = NEWEST.oldest_code < NEWEST.version
    await (share if may_share else refuse)(older, REPOSITORY, project, ledger)


async def refuse(old: Path, new: Path, project: Project, ledger: Reader) -> None:
    await migrate(project, new)
    path = {"PYTHONPATH": str(old)}
    for command in ("migrate", "status"):
        with project.started([*GATEWAY, command], **path) as asking:
            assert asking.process.wait(PATIENCE_S) != 0
            await asking.says("upgrade the gateway")
    with ExitStack() as stack:
        older, newer = Fleet(project, stack, old), Fleet(project, stack, new)
        old_serve, old_worker = older.serve(free_port()), older.worker()
        serving = newer.serve(free_port())
        await old_worker.says("upgrade the gateway")
        await serving.ready()
        answers = await serving.post_all([stripe_request(f"evt_{n}") for n in range(20)])
        assert {answer.status_code for answer in answers} == {200}
        assert await ledger.statuses() == {"pending": 20}
        assert old_serve.running.process.wait(PATIENCE_S) != 0
        await old_serve.running.says("upgrade the gateway")


async def share(old: Path, new: Path, project: Project, ledger: Reader) -> None:
    await migrate(project, new)
    await migrate(project, old)  # nothing to do, and no complaint
    with ExitStack() as stack:
        older, newer = Fleet(project, stack, old), Fleet(project, stack, new)
        both = older.serve(free_port()), newer.serve(free_port())
        workers = older.worker(), newer.worker()
        await asyncio.gather(*(serving.ready() for serving in both))
        await asyncio.gather(*(worker.says("worker_started") for worker in workers))
        requests = [stripe_request(f"evt_{n}") for n in range(200)]
        answers = await asyncio.gather(
            both[0].post_all(requests[:150]), both[1].post_all(requests[50:])
        )
        assert {answer.status_code for some in answers for answer in some} == {200}

        async def done() -> bool:
            return await ledger.statuses() == {"done": 200}

        await until(done)
        await asyncio.gather(*(worker.says("delivery_done") for worker in workers))
    assert await ledger.effects() == 200
    assert set(await ledger.outcomes()) == {"done"}
    with project.started([*GATEWAY, "status"], PYTHONPATH=str(old)) as looking:
        assert looking.process.wait(PATIENCE_S) == 0
