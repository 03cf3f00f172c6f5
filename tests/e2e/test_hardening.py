"""What strangers, caches and other accounts of the machine get to see: nothing."""

import os
import re
import stat
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import httpx
import orjson
import pytest

from gateway.dev.embedded import Postgres, Redis
from tests.support import needs
from tests.support.ports import free_port
from tests.support.processes import Project
from tests.support.waiting import PATIENCE_S

TOKEN = "adm1n-t0ken-of-the-suite"
DATA = ".gateway"


async def test_no_cache_keeps_what_people_are_shown(project: Project) -> None:
    with project.serve(GATEWAY_ADMIN_TOKEN=TOKEN) as serving:
        await serving.ready()
        async with httpx.AsyncClient(base_url=serving.url, timeout=PATIENCE_S) as client:
            mine = {"authorization": f"Bearer {TOKEN}"}
            for path in ("/api/v1/status", "/api/v1/events/none", "/metrics", "/healthz"):
                for headers in (mine, {}):
                    answer = await client.get(path, headers=headers)
                    assert answer.headers["cache-control"] == "no-store"
                    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_strangers_learn_of_no_version(project: Project) -> None:
    ours = ("webhook-gateway-server", "uvicorn", "starlette", "httptools", "orjson", "asyncpg")
    versions = [re.escape(version(name)) for name in ours]
    telling = re.compile(rf"uvicorn|starlette|python|postgres|\b(?:{'|'.join(versions)})\b", re.I)
    with project.serve(GATEWAY_ADMIN_TOKEN=TOKEN) as serving:
        await serving.ready()
        async with httpx.AsyncClient(base_url=serving.url, timeout=PATIENCE_S) as client:
            asked = [
                *[("GET", path) for path in ("/", "/healthz", "/readyz", "/metrics", "/nothing")],
                *[("GET", path) for path in ("/api/v1/status", "/api/v1/openapi.json", "/console")],
                *[("POST", path) for path in ("/webhooks/stripe", "/webhooks/github", "/api/v1/")],
                *[("PUT", "/webhooks/stripe"), ("TRACE", "/"), ("OPTIONS", "/api/v1/status")],
            ]
            for method, path in asked:
                answer = await client.request(method, path, content=b"x" * 10)
                assert "server" not in answer.headers
                told = f"{answer.headers} {answer.text}"
                assert not telling.search(told), (method, path, told)


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Project]:
    """A project on a machine where nothing is set, and whose files anybody may read by default."""
    project = Project(tmp_path, "", "")
    for name in ("GATEWAY_DATABASE_URL", "GATEWAY_REDIS_URL"):
        del project.environ[name]
    for name in ("STRIPE_WEBHOOK_SECRET", "GITHUB_WEBHOOK_SECRET"):
        del project.environ[name]
    project.environ["GATEWAY_PORT"] = str(free_port())
    project.environ["GATEWAY_ADMIN_TOKEN"] = TOKEN
    yield project
    Postgres(tmp_path / DATA / "postgres").remove()
    Redis(tmp_path / DATA / "redis").remove()


@needs.unless(Path("/proc/self/cmdline").exists(), "/proc")
async def test_other_accounts_can_read_neither_the_files_nor_the_command_lines_of_up(
    newcomer: Project,
) -> None:
    before = os.umask(0)
    try:
        with newcomer.process("up") as up:
            await up.says("Ready.")
            data = newcomer.directory / DATA
            assert newcomer.run("send", "github", "push").returncode == 0
            secrets = [*orjson.loads((data / "secrets.json").read_bytes()).values(), TOKEN]
            assert _readable_by_others(data) == []
            started = _descendants(up.process.pid)
            assert len(started) >= 4
            for words in started.values():
                assert not [secret for secret in secrets if secret in words]
                assert not re.search(r"\w+://[^/\s]*@", words)
    finally:
        os.umask(before)


def _readable_by_others(directory: Path) -> list[str]:
    """Files that somebody else can get at: through folders that let him pass."""
    found = []
    for folder, folders, files in os.walk(directory):
        for name in [*files, *folders]:
            path = Path(folder) / name
            mode = path.lstat().st_mode
            if name in folders and not mode & 0o007:
                folders.remove(name)  # nobody gets past it
            elif name not in folders and mode & 0o007 and not stat.S_ISLNK(mode):
                found.append(f"{path.relative_to(directory)} {mode & 0o777:o}")
    return found


def _descendants(pid: int) -> dict[int, str]:
    """The command lines of all that a process has started, and of what they have."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            found[int(entry.name)] = f"{parent}\n{words}"
    parents = {pid_: int(text.partition("\n")[0]) for pid_, text in found.items()}

    def is_ours(candidate: int) -> bool:
        while candidate in parents and candidate != pid:
            candidate = parents[candidate]
        return candidate == pid

    return {each: text.partition("\n")[2] for each, text in found.items() if is_ours(each)}
