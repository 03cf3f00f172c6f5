"""Databases that are made for a test and thrown away after it."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from gateway.base.errors import CommandFailed
from gateway.dev.embedded import Postgres, process
from gateway.ledger.migrate import SchemaFile, applied_version, read_migrations
from gateway.testing.throwaway import FOLDER_PREFIX, Throwaway, fastest_place, remove_abandoned
from tests.support.databases import run_sql

SHOP = SchemaFile(path=Path("shop.sql"), sql="create table orders (id text primary key)")


async def _count_databases(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(  # type: ignore[no-any-return]
            "select count(*) from pg_database where datname like 'gateway_test_%'"
        )
    finally:
        await connection.close()


async def test_a_clone_has_the_ledger_and_the_users_tables_and_is_nobody_elses(
    postgres: Postgres,
) -> None:
    with Throwaway([SHOP], server_url=postgres.url) as throwaway:
        first, second = await throwaway.clone(), await throwaway.clone()
        await run_sql(first, "insert into orders values ('one')")
        connection = await asyncpg.connect(second)
        try:
            assert await connection.fetchval("select count(*) from orders") == 0
            assert await applied_version(connection) == read_migrations()[-1].version
        finally:
            await connection.close()


async def test_nothing_is_left_on_a_server_that_was_given(postgres: Postgres) -> None:
    with Throwaway([SHOP], server_url=postgres.url) as throwaway:
        dropped, _ = await throwaway.clone(), await throwaway.clone()
        held_open = await asyncpg.connect(dropped)
        await throwaway.drop(dropped)
        assert await _count_databases(postgres.url) == 2  # the template and the other clone
        held_open.terminate()
    assert await _count_databases(postgres.url) == 0


async def test_a_schema_that_postgres_refuses_is_named_with_its_line(postgres: Postgres) -> None:
    broken = SchemaFile(path=Path("shop.sql"), sql="create table a (b int);\ncreate tabel c ();")
    with (
        pytest.raises(CommandFailed, match=r'shop\.sql:2: .*syntax error at or near "tabel"'),
        Throwaway([broken], server_url=postgres.url),
    ):
        pytest.fail("it started")
    assert await _count_databases(postgres.url) == 0


async def test_a_role_that_may_create_no_database_is_told_what_it_needs(
    postgres: Postgres,
) -> None:
    await run_sql(postgres.url, "create role small login")
    url = postgres.url.replace("gateway@", "small@")
    with pytest.raises(CommandFailed, match=r"permission denied.*createdb"):
        Throwaway([SHOP], server_url=url).start()


@pytest.fixture
def own_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the embedded ones of a test are, and no others."""
    place = Path(tempfile.mkdtemp(prefix="gateway-test-", dir=fastest_place()))
    place.chmod(0o711)
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.setattr("gateway.testing.throwaway.MEMORY", place)
    yield place
    shutil.rmtree(place)


def test_an_embedded_one_is_gone_with_its_folder_and_a_killed_one_with_the_next(
    own_place: Path,
) -> None:
    abandoned = _abandon(own_place)
    with Throwaway([SHOP]) as throwaway:
        url = asyncio.run(throwaway.clone())
        asyncio.run(run_sql(url, "insert into orders values ('one')"))
        [folder] = own_place.glob(f"{FOLDER_PREFIX}*")  # only ours: the other was removed
        assert str(folder) in urlsplit(url).query
        assert not _engines(abandoned)
        _age(folder)
        remove_abandoned(own_place)
        assert _engines(folder)  # old, but its owner lives
    assert not folder.exists()


def _abandon(temporary: Path) -> Path:
    """What a killed run leaves: a folder, and an engine that still runs in it."""
    program = (
        "import os, pathlib; from gateway.testing import throwaway;"
        f"throwaway.MEMORY = pathlib.Path({str(temporary)!r});"
        "throwaway.Throwaway([]).start(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    [folder] = temporary.glob(f"{FOLDER_PREFIX}*")
    assert _engines(folder)
    _age(folder)
    return folder


def _engines(folder: Path) -> list[int]:
    return process.inside(folder / "postgres" / "data", "postgres")


def _age(folder: Path) -> None:
    long_ago = time.time() - 3600
    os.utime(folder, (long_ago, long_ago))
