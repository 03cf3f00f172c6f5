"""`gateway rehearse` against drivers that connect in C: nothing of theirs reaches a real server."""

import asyncio
import json
import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import asyncpg
import pytest

from gateway.dev.embedded import Postgres
from tests.support.databases import on_database, run_sql
from tests.support.processes import Project
from tests.support.waiting import until

ROUTES = """
schema: []
routes:
  stripe:
    provider: stripe
    secrets: [env:NO_SUCH_SECRET]
    handlers: [handlers.shop]
"""
DRIVERS = '''
"""Each handler writes a row into the application's own database, by a connection of its own."""

import asyncio
import os

import django
import psycopg
import psycopg2
from django.conf import settings

from gateway import Context, Event, handler

URL = os.environ["APP_DB"]
PAID = "payment_intent.succeeded"
INSERT = "insert into leaked values (%s)"

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": psycopg.conninfo.conninfo_to_dict(URL)["dbname"],
            "HOST": psycopg.conninfo.conninfo_to_dict(URL)["host"],
            "USER": psycopg.conninfo.conninfo_to_dict(URL)["user"],
            "PORT": psycopg.conninfo.conninfo_to_dict(URL)["port"],
        }
    }
)
django.setup()


@handler(PAID)
async def by_psycopg(event: Event, ctx: Context) -> None:
    with psycopg.connect(URL) as connection:
        connection.execute(INSERT, [event.id])


@handler(PAID)
async def by_async_psycopg(event: Event, ctx: Context) -> None:
    async with await psycopg.AsyncConnection.connect(URL) as connection:
        await connection.execute(INSERT, [event.id])


@handler(PAID)
async def by_psycopg2(event: Event, ctx: Context) -> None:
    with psycopg2.connect(URL) as connection, connection.cursor() as cursor:
        cursor.execute(INSERT, [event.id])


@handler(PAID)
async def by_django(event: Event, ctx: Context) -> None:
    await asyncio.to_thread(save, event.id)


def save(id: str) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(INSERT, [id])
'''


@pytest.fixture
def app_url(postgres: Postgres) -> Iterator[str]:
    """The application's own database, with an empty table."""
    name = "app_" + uuid4().hex
    asyncio.run(run_sql(postgres.url, f"create database {name}"))
    url = on_database(postgres.url, name)
    asyncio.run(run_sql(url, "create table leaked (id text)"))
    yield url
    asyncio.run(run_sql(postgres.url, f"drop database {name} with (force)"))


@pytest.fixture
def project(tmp_path: Path, app_url: str, postgres: Postgres) -> Project:
    """A project that is rehearsed on the very server on which its own database is."""
    project = Project(tmp_path, "postgresql://nobody@127.0.0.1:1/nothing", "redis://127.0.0.1:1/0")
    project.environ["APP_DB"] = app_url
    project.environ["GATEWAY_TEST_DATABASE_URL"] = postgres.url
    project.write("config/routes.yaml", ROUTES)
    return project


def _count_leaked(url: str) -> int:
    async def count() -> int:
        connection = await asyncpg.connect(url)
        try:
            return int(await connection.fetchval("select count(*) from leaked"))
        finally:
            await connection.close()

    return asyncio.run(count())


def test_drivers_in_c_write_no_row_and_are_findings(project: Project, app_url: str) -> None:
    project.write("handlers/shop.py", DRIVERS)
    result = project.run("rehearse", "--json")
    assert _count_leaked(app_url) == 0, result.stdout
    assert result.returncode == 1, result.stderr
    faults = {
        report["handler"].rpartition(".")[2]: [f["fault"] for f in report["findings"]]
        for report in json.loads(result.stdout)
    }
    names = ("by_psycopg", "by_async_psycopg", "by_psycopg2", "by_django")
    assert faults == {name: ["escape"] for name in names}
    places = {f["place"] for report in json.loads(result.stdout) for f in report["findings"]}
    assert all(place.startswith("handlers/shop.py:") for place in places)


LIBRARY_IN_C = """
import ctypes
import os
import socket

from gateway import Context, Event, handler

LIBC = ctypes.CDLL(None)
PORT = int(os.environ["LISTENER"])
ADDRESS = socket.AF_INET.to_bytes(2, "little") + PORT.to_bytes(2, "big") + b"\\x7f\\0\\0\\x01"


@handler("payment_intent.succeeded")
async def connect_in_c(event: Event, ctx: Context) -> None:
    own = LIBC.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    LIBC.connect(own, ADDRESS + b"\\0" * 8, 16)


@handler("payment_intent.succeeded")
async def send_in_c(event: Event, ctx: Context) -> None:
    own = LIBC.socket(socket.AF_INET, socket.SOCK_DGRAM, 0)
    LIBC.sendto(own, b"x", 1, 0, ADDRESS + b"\\0" * 8, 16)
"""


@pytest.fixture
def listeners(project: Project) -> Iterator[list[socket.socket]]:
    """Sockets of both kinds on one port, which the handlers of LIBRARY_IN_C try to reach."""
    with socket.create_server(("127.0.0.1", 0)) as stream:
        port = stream.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind(("127.0.0.1", port))
            project.environ["LISTENER"] = str(port)
            yield [stream, datagrams]


def test_a_library_that_nothing_knows_of_is_refused_by_the_kernel(
    project: Project, listeners: list[socket.socket]
) -> None:
    project.write("handlers/shop.py", LIBRARY_IN_C)
    result = project.run("rehearse", "--json")
    assert select.select(listeners, [], [], 0)[0] == [], "something has arrived"
    assert result.returncode == 1, result.stderr
    reports = json.loads(result.stdout)
    found = [f["subject"].split(" by itself")[0] for report in reports for f in report["findings"]]
    assert found == [f"reaches 127.0.0.1:{project.environ['LISTENER']}"] * 2
    assert [report["unguarded"] for report in reports] == [[], []]


POOL_AT_IMPORT = """
import os

from psycopg_pool import ConnectionPool

from gateway import Context, Event, handler

POOL = ConnectionPool(os.environ["APP_DB"], min_size=1, timeout=60)


@handler("payment_intent.succeeded")
async def by_pool(event: Event, ctx: Context) -> None:
    with POOL.connection() as connection:
        connection.execute("insert into leaked values (%s)", [event.id])
"""


def test_a_pool_that_is_opened_at_import_gets_no_connection(project: Project, app_url: str) -> None:
    project.write("handlers/shop.py", POOL_AT_IMPORT)
    result = project.run("rehearse", "--json")
    assert _count_leaked(app_url) == 0, result.stdout
    assert result.returncode == 1, result.stderr
    [report] = json.loads(result.stdout)
    assert [(f["fault"], f["source"]) for f in report["findings"]] == [
        ("escape", "with POOL.connection() as connection:")
    ]


def test_a_module_that_connects_in_c_at_import_is_refused(project: Project, app_url: str) -> None:
    module = DRIVERS + "\n\nCONNECTION = psycopg2.connect(URL)\n"
    project.write("handlers/shop.py", module)
    result = project.run("rehearse")
    assert result.returncode == 2, result.stdout
    assert "a rehearsal reaches nothing outside" in result.stderr


BLOCKING = """
import asyncio
import smtplib
import time
from time import sleep

import requests

from gateway import Context, Event, handler


async def save(event: Event, ctx: Context) -> None:
    await ctx.upsert("names", key={"name": event.id}, values={})


@handler("payment_intent.succeeded")
async def sleeping(event: Event, ctx: Context) -> None:
    time.sleep(0.001)
    sleep(0.001)
    await save(event, ctx)


@handler("payment_intent.succeeded")
async def mailing(event: Event, ctx: Context) -> None:
    await save(event, ctx)
    await ctx.once("mail", send, unknown="skip")


def send() -> None:
    with smtplib.SMTP("mail.example") as server:
        server.sendmail("a@example.com", "b@example.com", "x")


@handler("payment_intent.succeeded")
async def asking(event: Event, ctx: Context) -> None:
    requests.get("https://api.example/x", timeout=1)


@handler("payment_intent.succeeded")
async def in_a_thread(event: Event, ctx: Context) -> None:
    await asyncio.to_thread(time.sleep, 0.001)
    await asyncio.sleep(0.001)
    await asyncio.get_running_loop().run_in_executor(None, sleep, 0.001)
    await asyncio.to_thread(send_once, ctx)
    await save(event, ctx)


def send_once(ctx: Context) -> None:
    time.sleep(0.001)
"""


def test_calls_that_block_the_event_loop_are_noted_with_their_line(project: Project) -> None:
    project.write("config/routes.yaml", ROUTES.replace("[]", "[handlers/names.sql]"))
    project.write("handlers/names.sql", "create table names (name text primary key)")
    project.write("handlers/shop.py", BLOCKING)
    result = project.run("rehearse", "--json")
    blocking = {
        report["handler"].rpartition(".")[2]: [
            note.split(" blocks ")[0] for note in report["notes"] if " blocks " in note
        ]
        for report in json.loads(result.stdout)
    }
    assert blocking == {
        "sleeping": ["time.sleep (handlers/shop.py:18)", "time.sleep (handlers/shop.py:19)"],
        "mailing": ["smtplib.SMTP.__init__ (handlers/shop.py:30)"],
        "asking": ["requests.api.get (handlers/shop.py:36)"],
        "in_a_thread": [],
    }


def test_the_gateways_own_connections_come_through_over_tcp(
    project: Project, postgres: Postgres
) -> None:
    project.write("handlers/shop.py", DRIVERS)
    socket_file = f"{parse_qs(urlsplit(postgres.url).query)['host'][0]}/.s.PGSQL.5432"
    with relayed_over_tcp(Path(socket_file)) as port:
        url = f"postgresql://gateway@localhost:{port}/postgres"
        result = project.run("rehearse", "--json", GATEWAY_TEST_DATABASE_URL=url)
    assert result.returncode == 1, result.stderr
    assert all(report["schedules"] for report in json.loads(result.stdout)), result.stdout


def test_a_killed_rehearsal_leaves_no_postgres(project: Project) -> None:
    project.write("handlers/shop.py", WAITING)
    del project.environ["GATEWAY_TEST_DATABASE_URL"]
    with project.process("rehearse") as rehearsal:
        asyncio.run(until((project.directory / "server").exists))
        folder = Path((project.directory / "server").read_text(encoding="utf-8"))
        assert folder.exists()
        rehearsal.kill()
        asyncio.run(until(lambda: not folder.exists()))


WAITING = """
import asyncio
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from gateway import Context, Event, handler


@handler("payment_intent.succeeded")
async def wait(event: Event, ctx: Context) -> None:
    folder = await ctx.db.fetchval("select current_setting('data_directory')")
    Path("folder").write_text(folder)
    Path("folder").rename("server")
    await asyncio.sleep(60)
"""


@contextmanager
def relayed_over_tcp(server: Path) -> Iterator[int]:
    """A port that leads to the server behind a Unix socket."""

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(str(server))
                ends = {self.request: other, other: self.request}
                while True:
                    for end in select.select(list(ends), [], [])[0]:
                        data = end.recv(65536)
                        if not data:
                            return
                        ends[end].sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as relay:
        relay.daemon_threads = True
        thread = threading.Thread(target=relay.serve_forever)
        thread.start()
        try:
            yield relay.server_address[1]
        finally:
            relay.shutdown()
            thread.join()
