"""The code of the previous schema beside this one, on the new schema: as in a rolling upgrade."""

import asyncio
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

import pytest

from gateway.ledger.migrate import read_migrations
from tests.support.ledger import Reader
from tests.support.processes import Project, Serving, free_port, stripe_request
from tests.support.waiting import until

REPOSITORY: Final = Path(__file__).parents[2]


def git(*arguments: str) -> bytes:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This repository as it was before its newest migration was added."""
    newest = f"gateway/ledger/migrations/{read_migrations()[-1].name}.sql"
    try:
        added = git("log", "--diff-filter=A", "--format=%H", "--", newest).decode().split()
        tree = git("archive", f"{added[-1]}^" if added else "HEAD", "gateway")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs git and the history of this repository")
    directory = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
        archive.extractall(directory, filter="data")
    assert not (directory / newest).exists()
    return directory


async def test_old_and_new_processes_share_a_ledger(
    older: Path, project: Project, ledger: Reader
) -> None:
    gateway, path = [sys.executable, "-m", "gateway"], {"PYTHONPATH": str(older)}
    with project.started([*gateway, "migrate"], **path) as migrating:
        assert migrating.process.wait(60) == 0, "nothing to do, and no complaint"
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
        assert looking.process.wait(60) == 0
