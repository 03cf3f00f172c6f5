"""One `serve` process per module, for tests that only ask."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.embedded import Postgres, Redis
from tests.support.databases import TEMPLATE, drop, on_database, run_sql
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
