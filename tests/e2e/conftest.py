"""Projects: one for all tests of a module that only ask, and one of somebody who begins."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.dev.embedded import Postgres, Redis
from tests.support.databases import TEMPLATE, drop, on_database, run_sql
from tests.support.ports import free_port
from tests.support.processes import Project, Serving


@pytest.fixture(scope="module")
def module_project(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis: Redis
) -> Iterator[Project]:
    """A project that the tests of a module share."""
    name = f"module_{uuid4().hex}"
    asyncio.run(run_sql(postgres.url, f'create database "{name}" template "{TEMPLATE}"'))
    directory: Path = tmp_path_factory.mktemp("project")
    yield Project(directory, on_database(postgres.url, name), redis.url)
    asyncio.run(drop(postgres.url, name))


@pytest.fixture(scope="module")
def serving(module_project: Project) -> Iterator[Serving]:
    """Its `serve`, ready."""
    with module_project.serve() as process:
        asyncio.run(process.ready())
        yield process


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Project]:
    """An empty directory, on a machine where nothing is set."""
    project = Project(tmp_path, "", "")
    for file in sorted(tmp_path.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    project.environ = {
        name: value
        for name, value in project.environ.items()
        if not name.startswith(("GATEWAY_", "STRIPE_", "GITHUB_"))
    } | {"GATEWAY_PORT": str(free_port())}  # 8000 may be somebody else's here
    yield project
    Postgres(project.directory / ".gateway" / "postgres").remove()
    Redis(project.directory / ".gateway" / "redis").remove()
