"""The code of the previous schema beside this one, on the new schema: as in a rolling upgrade."""

import asyncio
import sys
from pathlib import Path
from typing import Final

import pytest

from gateway.ledger.migrate import read_migrations
from tests.support.ledger import Reader
from tests.support.needs import lacks
from tests.support.ports import free_port
from tests.support.processes import Project, Serving, stripe_request
from tests.support.versions import NoHistory, find_older, unpack
from tests.support.waiting import PATIENCE_S, until

NEWEST: Final = read_migrations()[-1]
MAY_SHARE: Final = NEWEST.oldest_code < NEWEST.version
"""Whether the code of the schema before says that it can work with this one."""

GATEWAY: Final = [sys.executable, "-m", "gateway"]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This repository as it was before its newest migration was added."""
    directory = tmp_path_factory.mktemp("older")
    try:
        unpack(find_older(), directory)
    except NoHistory:
        lacks("the git history of this repository")
    newest = f"gateway/ledger/migrations/{read_migrations()[-1].name}.sql"
    assert not (directory / newest).exists()
    return directory


async def test_old_and_new_processes_share_a_ledger_or_the_old_ones_say_why_not(
    older: Path, project: Project, ledger: Reader
) -> None:
    await (share if MAY_SHARE else refuse)({"PYTHONPATH": str(older)}, project, ledger)


async def refuse(path: dict[str, str], project: Project, ledger: Reader) -> None:
    for command in ("migrate", "status"):
        with project.started([*GATEWAY, command], **path) as asking:
            assert asking.process.wait(PATIENCE_S) != 0
            await asking.says("upgrade the gateway")
    with (
        project.started([*GATEWAY, "serve"], GATEWAY_PORT=str(free_port()), **path) as old_serve,
        project.started([*GATEWAY, "worker"], **path) as old_worker,
        project.serve() as new,
    ):
        await old_worker.says("upgrade the gateway")
        await new.ready()
        answers = await new.post_all([stripe_request(f"evt_{n}") for n in range(20)])
        assert {answer.status_code for answer in answers} == {200}
        assert await ledger.statuses() == {"pending": 20}
        assert old_serve.process.wait(PATIENCE_S) != 0
        await old_serve.says("upgrade the gateway")


async def share(path: dict[str, str], project: Project, ledger: Reader) -> None:
    gateway = GATEWAY
    with project.started([*gateway, "migrate"], **path) as migrating:
        assert migrating.process.wait(PATIENCE_S) == 0, "nothing to do, and no complaint"
    port = str(free_port())
    with (
        project.started([*gateway, "serve"], GATEWAY_PORT=port, **path) as old_serve,
        project.serve() as new,
        project.started([*gateway, "worker"], **path) as old_worker,
        project.process("worker") as new_worker,
    ):
        old = Serving(old_serve, f"http://127.0.0.1:{port}")
        await asyncio.gather(old.ready(), new.ready())
        await asyncio.gather(old_worker.says("worker_started"), new_worker.says("worker_started"))
        requests = [stripe_request(f"evt_{n}") for n in range(200)]
        answers = await asyncio.gather(old.post_all(requests[:150]), new.post_all(requests[50:]))
        assert {answer.status_code for some in answers for answer in some} == {200}

        async def done() -> bool:
            return await ledger.statuses() == {"done": 200}

        await until(done)
        await asyncio.gather(*(w.says("delivery_done") for w in (old_worker, new_worker)))
    assert await ledger.effects() == 200
    assert set(await ledger.outcomes()) == {"done"}
    with project.started([*gateway, "status"], **path) as looking:
        assert looking.process.wait(PATIENCE_S) == 0
