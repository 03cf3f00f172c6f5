"""Real engines for the whole suite, a fresh database for each test."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import hypothesis
import pytest
from redis.asyncio import Redis as RedisClient

from gateway.dev.embedded import Postgres, Redis
from gateway.ledger.migrate import SchemaFile, migrate
from gateway.testing.throwaway import fastest_place
from tests.support import needs, parsing
from tests.support.databases import EFFECTS, TEMPLATE, drop, on_database, run_sql
from tests.support.ledger import Reader
from tests.support.pgbouncer import PgBouncer, pgbouncer
from tests.support.processes import Project

parsing.install()

# A deadline measures the machine, which may be busy. In CI the rest of the profile is that of CI.
hypothesis.settings.register_profile("suite", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reverse-files",
        action="store_true",
        help="run the test files in reverse order, so that no file can rely on the one before it",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("reverse_files"):
        items.sort(key=lambda item: str(item.path), reverse=True)  # stable: within a file as ever


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    for line in needs.summarize(report.longrepr[2] for report in reports):
        terminalreporter.write_line(line, yellow=True)


@pytest.fixture(scope="session")
def engine_dir() -> Iterator[Path]:
    """A directory that the engines' account can reach."""
    directory = Path(tempfile.mkdtemp(prefix="gateway-test-", dir=fastest_place()))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(engine_dir: Path) -> Iterator[Postgres]:
    """A Postgres for everything that does not break it."""
    engine = Postgres(engine_dir / "postgres", durable=False)
    engine.start()
    asyncio.run(make_template(engine.url))
    yield engine
    engine.stop()


async def make_template(url: str) -> None:
    """The database that others are cloned from."""
    await run_sql(url, f'create database "{TEMPLATE}"')
    connection = await asyncpg.connect(on_database(url, TEMPLATE))
    await migrate(connection, [SchemaFile(path=Path("effects.sql"), sql=EFFECTS)])
    await connection.close()


@pytest.fixture(scope="session")
def redis(engine_dir: Path) -> Iterator[Redis]:
    """A Redis for everything that does not break it."""
    engine = Redis(engine_dir / "redis", durable=False)
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def pooler(engine_dir: Path, postgres: Postgres) -> Iterator[PgBouncer | None]:
    """What stands before Postgres: nothing, or with POOLER in the environment (`make
    test-pgbouncer`) a PgBouncer with fewer servers than most tests have clients."""
    if not os.environ.get("POOLER"):
        yield None
        return
    with pgbouncer(engine_dir / "pooler", postgres.url, default_pool_size="8") as bouncer:
        yield bouncer


@pytest.fixture
async def direct_url(postgres: Postgres) -> AsyncIterator[str]:
    """A database of this test's own: migrated, with the tables of an imaginary user."""
    name = f"test_{uuid4().hex}"
    await run_sql(postgres.url, f'create database "{name}" template "{TEMPLATE}"')
    yield on_database(postgres.url, name)
    await drop(postgres.url, name)


@pytest.fixture
def database_url(direct_url: str, pooler: PgBouncer | None) -> str:
    """That database, as the gateway is told of it."""
    return direct_url if pooler is None else pooler.url(urlsplit(direct_url).path.lstrip("/"))


@pytest.fixture
async def empty_database_url(postgres: Postgres) -> AsyncIterator[str]:
    """A database with nothing in it."""
    name = f"test_{uuid4().hex}"
    await run_sql(postgres.url, f'create database "{name}"')
    yield on_database(postgres.url, name)
    await drop(postgres.url, name)


@pytest.fixture
async def redis_url(redis: Redis) -> str:
    """An empty Redis."""
    client = RedisClient.from_url(redis.url)
    await client.flushall()
    await client.aclose()
    return redis.url


@pytest.fixture
async def ledger(direct_url: str) -> AsyncIterator[Reader]:
    """For looking into this test's database."""
    connection = await asyncpg.connect(direct_url)
    yield Reader(connection)
    await connection.close()


@pytest.fixture
def project(tmp_path: Path, database_url: str, redis_url: str) -> Project:
    """A user's own project, on this test's database, migrated."""
    return Project(tmp_path, database_url, redis_url)
