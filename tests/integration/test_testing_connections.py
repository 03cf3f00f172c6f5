"""Handlers in a user's tests open no connection by themselves, unless the test says so."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from gateway.dev.embedded import Postgres
from tests.support.databases import on_database, run_sql

pytest_plugins = ["pytester"]

LOAD = ("-p", "gateway.pytest_plugin", "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider")
INI = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"

ROUTES = """
routes:
  stripe:
    provider: stripe
    secrets: [env:NOWHERE]
    handlers: [hooks.shop]
"""
SHOP = """
import asyncio
import os
import socket

import asyncpg
import psycopg
import psycopg2

from gateway import Context, Event, Retry, handler, resource

URL = os.environ["APP_DB"]


@handler("invoice.paid")
async def by_psycopg(event: Event, ctx: Context) -> None:
    with psycopg.connect(URL) as connection:
        connection.execute("insert into leaked values (%s)", [event.id])


@handler("invoice.paid")
async def by_psycopg2(event: Event, ctx: Context) -> None:
    await asyncio.to_thread(save, event.id)


def save(id: str) -> None:
    with psycopg2.connect(URL) as connection, connection.cursor() as cursor:
        cursor.execute("insert into leaked values (%s)", [id])


@handler("invoice.paid")
async def by_asyncpg(event: Event, ctx: Context) -> None:
    connection = await asyncpg.connect(URL)
    await connection.execute("insert into leaked values ($1)", event.id)
    await connection.close()


@handler("invoice.paid")
async def by_socket(event: Event, ctx: Context) -> None:
    try:
        socket.create_connection(("localhost", int(os.environ["LISTENER"]))).close()
    except OSError:
        pass


@handler("invoice.paid")
async def hiding(event: Event, ctx: Context) -> None:
    try:
        await asyncpg.connect(URL)
    except OSError as error:
        raise Retry("the database is away") from error


@resource
async def database():
    connection = await asyncpg.connect(URL)
    yield connection
    await connection.close()


@handler("invoice.paid")
async def by_resource(event: Event, ctx: Context) -> None:
    await ctx.resources.database.execute("insert into leaked values ($1)", event.id)
    await by_psycopg(event, ctx)


@handler("charge.succeeded", timeout="100ms")
async def slow(event: Event, ctx: Context) -> None:
    await ctx.db.execute("select pg_sleep(30)")
"""
REFUSED = """
import pytest

from gateway.testing import ConnectionNotAllowed
from hooks import shop

DRIVERS = [shop.by_psycopg, shop.by_psycopg2, shop.by_asyncpg, shop.by_socket, shop.hiding]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("handler", DRIVERS)
def test_refused(deliver, make_event, handler, check):
    with pytest.raises(ConnectionNotAllowed, match="hooks/shop.py:.*gateway_allow_hosts"):
        deliver(handler, make_event("stripe", "invoice.paid"), check=check)


def test_a_statement_may_be_cancelled(deliver, make_event):
    result = deliver(shop.slow, make_event("stripe", "charge.succeeded"), check=False)
    assert result.outcome == "retry"


def test_a_test_itself_may_connect(db):
    import psycopg

    psycopg.connect(shop.URL).close()
"""
ALLOWED = """
import os

import pytest

from gateway.testing import ConnectionNotAllowed
from hooks import shop

SERVER = "/*"
LISTENER = "localhost:" + os.environ["LISTENER"]


@pytest.mark.gateway_allow_hosts(SERVER)
@pytest.mark.parametrize("handler", [shop.by_psycopg, shop.by_psycopg2, shop.by_asyncpg])
def test_a_server_is_allowed(deliver, make_event, handler):
    assert deliver(handler, make_event("stripe", "invoice.paid")).status == "done"


@pytest.mark.gateway_allow_hosts(LISTENER)
def test_a_host_is_allowed_by_its_name(deliver, make_event):
    assert deliver(shop.by_socket, make_event("stripe", "invoice.paid")).status == "done"


@pytest.mark.gateway_allow_hosts(LISTENER)
def test_others_are_not(deliver, make_event):
    with pytest.raises(ConnectionNotAllowed):
        deliver(shop.by_psycopg, make_event("stripe", "invoice.paid"))


def test_a_real_resource_connects(deliver, make_event, resources):
    resources.open("database")
    assert deliver(shop.by_resource, make_event("stripe", "invoice.paid")).status == "done"
"""


@pytest.fixture
def app_url(postgres: Postgres) -> Iterator[str]:
    """The application's own database, on the server on which the tests' databases are."""
    name = "app_" + uuid4().hex
    asyncio.run(run_sql(postgres.url, f"create database {name}"))
    url = on_database(postgres.url, name)
    asyncio.run(run_sql(url, "create table leaked (id text)"))
    yield url
    asyncio.run(run_sql(postgres.url, f"drop database {name} with (force)"))


@pytest.fixture
def project(
    pytester: pytest.Pytester, postgres: Postgres, app_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A user's project, and a server whose port it knows."""
    monkeypatch.setenv("GATEWAY_TEST_DATABASE_URL", postgres.url)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("APP_DB", app_url)
    for name, text in {
        "pytest.ini": INI,
        "config/routes.yaml": ROUTES,
        "hooks/__init__.py": "",
        "hooks/shop.py": SHOP,
    }.items():
        file = pytester.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("LISTENER", str(server.getsockname()[1]))
        yield pytester.path


async def _count_leaked(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("select count(*) from leaked"))
    finally:
        await connection.close()


@pytest.mark.usefixtures("project")
def test_a_handler_that_connects_fails_its_test_with_its_line_and_what_to_do(
    pytester: pytest.Pytester, app_url: str
) -> None:
    pytester.makepyfile(REFUSED)
    result = pytester.runpytest_subprocess(*LOAD, "-W", "error", "--strict-markers")
    assert asyncio.run(_count_leaked(app_url)) == 0
    result.assert_outcomes(passed=12)


@pytest.mark.usefixtures("project")
def test_a_test_may_allow_servers(pytester: pytest.Pytester, app_url: str) -> None:
    pytester.makepyfile(ALLOWED)
    result = pytester.runpytest_subprocess(*LOAD, "-W", "error", "--strict-markers")
    result.assert_outcomes(passed=6)
    assert asyncio.run(_count_leaked(app_url)) == 5


def test_a_project_may_allow_servers(
    project: Path, pytester: pytest.Pytester, app_url: str
) -> None:
    (project / "pytest.ini").write_text(f"{INI}gateway_allow_hosts = /*\n", encoding="utf-8")
    pytester.makepyfile(
        """
        from hooks import shop

        def test_it(deliver, make_event):
            deliver(shop.by_asyncpg, make_event("stripe", "invoice.paid"))
        """
    )
    pytester.runpytest_subprocess(*LOAD, "-W", "error").assert_outcomes(passed=1)
    assert asyncio.run(_count_leaked(app_url)) == 1
