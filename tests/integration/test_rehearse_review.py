"""`gateway rehearse` against those who mean no good, or did not think: nothing gets out, nothing is
called safe that was never tried."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Final
from uuid import uuid4

import asyncpg
import pytest

from gateway.base.errors import ConfigInvalid
from gateway.config.project import load_project
from gateway.config.settings import Settings
from gateway.dev.embedded import Postgres
from gateway.testing.rehearse import Report, Request, Verdict, rehearse
from gateway.testing.rehearse.database import InventedRow, Table
from gateway.testing.rehearse.events import invent_rows
from gateway.testing.rehearse.findings import CLOCK_ADVICE, Fault
from gateway.testing.rehearse.isolation import guarding_imports
from gateway.testing.rehearse.trace import Step
from gateway.testing.throwaway import FORGOTTEN_S, PREFIX, Throwaway
from tests.support.databases import on_database, run_sql
from tests.support.waiting import PATIENCE_S, until

ROUTES: Final = """
schema: [reviewed/schema.sql]
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [reviewed.handlers]
  jobs:
    provider: publish
"""
SCHEMA: Final = """
create table accounts (id int primary key, balance int not null);
create table customers (id text primary key, account int not null);
create table balances (customer text primary key, amount int not null);
create table log (id text, amount int);
create table days (id text, day date, amount int, primary key (id, day));
create table reminders (customer text primary key, sent timestamptz not null);
create table states (id text primary key, changed_at timestamptz not null default now());
"""
HEAD: Final = """
import asyncio, multiprocessing, os, socket, time
import asyncpg
from gateway import handler, resource

PAID = "payment_intent.succeeded"

def object_of(event):
    return event.payload["data"]["object"]

async def post(ctx):
    answer = await ctx.http.post("https://mail.example/send", json={"n": 1})
    answer.raise_for_status()

@resource
async def bank():
    yield object()
"""

Rehearse = Callable[[str], dict[str, Report]]


def _write_project(directory: Path, handlers: str) -> None:
    (directory / "config").mkdir()
    (directory / "reviewed").mkdir()
    (directory / "config/routes.yaml").write_text(ROUTES, encoding="utf-8")
    (directory / "reviewed/schema.sql").write_text(SCHEMA, encoding="utf-8")
    (directory / "reviewed/handlers.py").write_text(HEAD + handlers, encoding="utf-8")


def _forget_project() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "reviewed"]:
        del sys.modules[name]


@pytest.fixture
def reviewed(postgres: Postgres, tmp_path: Path) -> Iterator[Rehearse]:
    """Rehearses these handlers, and tells of each by the name of its function."""
    path = list(sys.path)

    def run(handlers: str) -> dict[str, Report]:
        _write_project(tmp_path, handlers)
        found: dict[str, Report] = {}
        with chdir(tmp_path):
            request = Request(
                project=load_project(Settings()),
                handlers=(),
                recorded={},
                server_url=postgres.url,
            )
            rehearse(request, lambda r: found.update({r.handler.rpartition(".")[2]: r}))
        return found

    yield run
    sys.path[:] = path
    _forget_project()


def _faults(report: Report) -> list[Fault]:
    return [finding.fault for finding in report.findings]


@pytest.fixture
def prod_url(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The app's own database, on the server that the tests use, too."""
    name = "prod_" + uuid4().hex
    asyncio.run(run_sql(postgres.url, f"create database {name}"))
    url = on_database(postgres.url, name)
    asyncio.run(run_sql(url, "create table leaked (id text)"))
    monkeypatch.setenv("APP_DB", url)
    yield url
    asyncio.run(run_sql(postgres.url, f"drop database {name}"))


def test_the_apps_own_database_on_the_test_server_is_not_written_to(
    reviewed: Rehearse, prod_url: str
) -> None:
    reports = reviewed("""
@handler(PAID)
async def connect(event, ctx):
    await ctx.db.execute("select 1")
    await ctx.once("first", post, ctx)
    connection = await asyncpg.connect(os.environ["APP_DB"])
    await connection.execute("insert into leaked values ($1)", event.id)
    await connection.close()

@handler(PAID)
async def connect_in_a_task(event, ctx):
    await asyncio.create_task(connect(event, ctx))

@handler(PAID)
async def take_too_long(event, ctx):
    try:
        async with asyncio.timeout(0.05):
            await ctx.db.execute("select pg_sleep(60)")
    except TimeoutError:
        pass
""")

    async def count_leaked() -> int:
        connection = await asyncpg.connect(prod_url)
        try:
            return int(await connection.fetchval("select count(*) from leaked"))
        finally:
            await connection.close()

    assert asyncio.run(count_leaked()) == 0
    assert _faults(reports["connect"]) == [Fault.ESCAPE]
    assert _faults(reports["connect_in_a_task"]) == [Fault.ESCAPE]
    assert not reports["take_too_long"].findings  # to cancel a statement is no escape


def test_other_ways_out_are_refused(reviewed: Rehearse) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.bind(("127.0.0.1", 0))
        ear.setblocking(False)
        reports = reviewed(f"""
ADDRESS = {ear.getsockname()!r}

def send():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mouth:
        mouth.sendto(b"x", ADDRESS)

@handler(PAID)
async def by_message(event, ctx):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mouth:
        mouth.sendmsg([b"x"], [], 0, ADDRESS)

@handler(PAID)
async def by_spawn(event, ctx):
    process = multiprocessing.get_context("spawn").Process(target=send)
    process.start()
    process.join()

@handler(PAID)
async def by_fork(event, ctx):
    process = multiprocessing.get_context("fork").Process(target=send)
    process.start()
    process.join()
""")
        with pytest.raises(BlockingIOError):
            ear.recv(1)
    assert {name: _faults(report) for name, report in reports.items()} == {
        "by_message": [Fault.ESCAPE],
        "by_spawn": [Fault.ESCAPE],
        "by_fork": [Fault.ESCAPE],
    }


def test_a_module_that_connects_when_it_is_imported_is_refused(tmp_path: Path) -> None:
    path = list(sys.path)
    _write_project(tmp_path, 'socket.create_connection(("127.0.0.1", 1))')
    try:
        with (
            chdir(tmp_path),
            guarding_imports(tmp_path),
            pytest.raises(ConfigInvalid, match=r"reaches nothing outside, also not 127\.0\.0\.1:1"),
        ):
            load_project(Settings())
    finally:
        sys.path[:] = path
        _forget_project()


def test_statements_of_every_form_meet_a_row(reviewed: Rehearse) -> None:
    reports = reviewed("""
@handler(PAID)
async def many(event, ctx):
    await ctx.db.executemany("update accounts set balance = balance + 1 where id = $1", [(5,)])

@handler(PAID)
async def beyond(event, ctx):
    await ctx.db.executemany("update accounts set balance = balance + 1 where id = $1", iter([]))

@handler(PAID)
async def guarded(event, ctx):
    if await ctx.db.fetchrow("select * from customers where id = $1", event.id) is None:
        return
    await post(ctx)

@handler(PAID)
async def guarded_by_exists(event, ctx):
    sql = "select exists (select from customers where id = $1)"
    if await ctx.db.fetchval(sql, event.id):
        await post(ctx)

@handler(PAID)
async def with_query(event, ctx):
    await ctx.db.execute(
        "with c as (select 1) update accounts set balance = balance + 1 where id = $1", 5)

@handler(PAID)
async def within_with(event, ctx):
    await ctx.db.execute(
        "with c as (update accounts set balance = balance + 1 where id = $1) select 1", 5)

@handler(PAID)
async def copied(event, ctx):
    await ctx.db.execute("insert into log select customer, amount from balances")

@handler(PAID)
async def joined(event, ctx):
    await ctx.db.execute(
        "update accounts a set balance = balance + 1 from customers c "
        "where c.account = a.id and c.id = $1", event.id)

@handler(PAID)
async def listed(event, ctx):
    await ctx.db.execute(
        "insert into log select b.customer, b.amount from customers c, balances b "
        "where b.customer = c.id and c.id = $1", event.id)

@handler(PAID)
async def any_of(event, ctx):
    await ctx.db.execute("update accounts set balance = balance + 1 where id = any($1::int[])", [5])

@handler(PAID)
async def never(event, ctx):
    await ctx.db.execute("update accounts set balance = 1 where id = $1 and balance > 7", 5)
""")
    verdicts = {name: report.verdict for name, report in reports.items()}
    assert verdicts.pop("beyond") is not Verdict.FAILED
    assert verdicts.pop("never") is Verdict.SAFE
    assert set(verdicts.values()) == {Verdict.UNSAFE}, verdicts
    assert any("never met a row" in note for note in reports["never"].notes)
    assert not any("never met" in note for r in ("guarded", "joined") for note in reports[r].notes)


def test_a_rehearsal_that_breaks_leaves_the_others_alone(
    reviewed: Rehearse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(steps: Sequence[Step], tables: Sequence[Table]) -> Iterator[InventedRow]:
        if "accounts" in steps[0].text:
            raise IndexError("no such argument")
        yield from invent_rows(steps, tables)

    monkeypatch.setattr("gateway.testing.rehearse.single_runs.invent_rows", break_down)
    reports = reviewed("""
@handler(PAID)
async def broken(event, ctx):
    await ctx.db.execute("update accounts set balance = 1 where id = $1", 5)

@handler(PAID)
async def whole(event, ctx):
    await ctx.db.execute("insert into log values ($1)", event.id)
""")
    assert reports["broken"].verdict is Verdict.FAILED
    assert "the rehearsal itself failed: IndexError" in (reports["broken"].reason or "")
    assert reports["whole"].verdict is Verdict.UNSAFE


def test_a_name_of_once_that_is_another_each_time_guards_nothing(reviewed: Rehearse) -> None:
    reports = reviewed("""
@handler(PAID)
async def by_the_clock(event, ctx):
    await ctx.once(f"mail-{time.time()}", post, ctx, unknown="skip")

async def post_twice(ctx):
    await post(ctx)
    (await ctx.http.post("https://sms.example/send")).raise_for_status()

@handler(PAID)
async def by_the_event(event, ctx):
    await ctx.once(f"mail-{event.id}", post_twice, ctx)
""")
    assert _faults(reports["by_the_clock"]) == [Fault.CALLED]
    assert reports["by_the_event"].verdict is Verdict.SAFE


def test_deeds_are_not_taken_for_questions_by_their_first_word(reviewed: Rehearse) -> None:
    actions = (
        "make_payment",
        "release_funds",
        "open_ticket",
        "begin_refund",
        "close_account",
        "to_ban",
    )
    harmless = ("get_user", "list_users", "close", "open")
    reports = reviewed(
        "".join(
            f"""
@handler(PAID)
async def h_{name}(event, ctx):
    await ctx.resources.bank.{name}(event.id)
"""
            for name in (*actions, *harmless)
        )
    )
    unsafe = {name for name, report in reports.items() if report.verdict is Verdict.UNSAFE}
    assert unsafe == {f"h_{name}" for name in actions}


def test_a_time_that_the_handler_sets_counts_though_the_column_has_a_default(
    reviewed: Rehearse,
) -> None:
    reports = reviewed("""
@handler("customer.subscription.updated")
async def last_wins(event, ctx):
    await ctx.upsert("states", key={"id": object_of(event)["id"]},
                     values={"changed_at": event.occurred_at})

@handler("customer.subscription.updated")
async def leave_the_default(event, ctx):
    await ctx.upsert("states", key={"id": object_of(event)["id"]}, values={})
""")
    assert _faults(reports["last_wins"]) == [Fault.ORDER]
    assert reports["leave_the_default"].verdict is Verdict.SAFE


def test_no_secret_is_in_a_report(reviewed: Rehearse, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "SLACK_HOOK": "xoxb-of-the-suite",
        "DB_DSN": "dsn-of-the-suite",
        "APP_DB": "postgresql://app:hunter2-of-the-suite@db.example/prod",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    reports = reviewed("""
@handler(PAID)
async def post_it(event, ctx):
    await ctx.http.post("https://hooks.example/" + os.environ["SLACK_HOOK"])

@handler(PAID)
async def raise_it(event, ctx):
    raise RuntimeError("cannot connect to " + os.environ["APP_DB"])

@handler(PAID)
async def store_it(event, ctx):
    await ctx.db.execute("insert into log values ($1)", os.environ["DB_DSN"])

@handler(PAID)
async def spell_it_out(event, ctx):
    await ctx.db.execute(f"insert into log values ('{os.environ['APP_DB']}')")
""")
    told = str([report.as_json() for report in reports.values()])
    assert "of-the-suite" not in told
    assert all(f"${name}" in told for name in secrets)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_rehearsal_that_is_ended_leaves_nothing_behind(
    postgres: Postgres, tmp_path: Path, signum: signal.Signals
) -> None:
    _write_project(
        tmp_path,
        """
@handler(PAID)
async def wait(event, ctx):
    open("waits", "w").close()
    time.sleep(0.5)
    await asyncio.sleep(9)
""",
    )
    command = [str(Path(sys.executable).with_name("gateway")), "rehearse"]
    environ = os.environ | {"GATEWAY_TEST_DATABASE_URL": postgres.url}
    process = subprocess.Popen(command, cwd=tmp_path, env=environ)
    try:
        asyncio.run(until((tmp_path / "waits").exists))
        process.send_signal(signum)
        assert process.wait(PATIENCE_S) == 128 + signum
    finally:
        process.kill()
        process.wait()
    assert not asyncio.run(_databases(postgres.url))


async def _databases(url: str) -> set[str]:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "select datname from pg_database where starts_with(datname, $1)", PREFIX
        )
        return {row["datname"] for row in rows}
    finally:
        await connection.close()


def test_databases_of_killed_processes_are_dropped_and_others_kept(postgres: Postgres) -> None:
    now = int(time.time())
    old, young = f"{PREFIX}{now - int(FORGOTTEN_S) - 9}_old", f"{PREFIX}{now - 9}_young"
    foreign = f"{PREFIX}of_somebody"
    creating = [f'create database "{name}"' for name in (old, young, foreign)]
    asyncio.run(run_sql(postgres.url, *creating))
    try:
        with Throwaway([], server_url=postgres.url):
            left = asyncio.run(_databases(postgres.url))
        assert old not in left
        assert {young, foreign} <= left
    finally:
        dropping = [f'drop database if exists "{name}"' for name in (old, young, foreign)]
        asyncio.run(run_sql(postgres.url, *dropping))


CLOCKS: Final = """
import datetime as dt
from datetime import UTC, date, datetime
from gateway import Context

BANK = "https://bank.example/payouts"

async def pay(ctx, key):
    answer = await ctx.http.post(BANK, json={"n": 1}, headers={"Idempotency-Key": key})
    answer.raise_for_status()

@handler(PAID)
async def key_of_the_minute(event, ctx):
    await pay(ctx, f"{object_of(event)['id']}-{datetime.now(UTC):%Y%m%d%H%M}")

@handler(PAID)
async def key_of_the_hour(event, ctx):
    await pay(ctx, f"{object_of(event)['id']}-{int(time.time() // 3600)}")

@handler(PAID)
async def key_of_the_month(event, ctx):
    await pay(ctx, f"{object_of(event)['id']}-{dt.date.today():%Y-%m}")

@handler(PAID)
async def once_per_day(event, ctx):
    await ctx.once("mail", post, ctx, per=(object_of(event)["id"], date.today().isoformat()))

@handler(PAID)
async def job_of_the_day(event, ctx):
    id = object_of(event)["id"]
    await ctx.publish("jobs", {"id": id}, key=f"{date.today()}-{id}")

@handler(PAID)
async def row_of_the_day(event, ctx):
    await ctx.upsert(
        "days", key={"id": object_of(event)["id"], "day": date.today()}, values={"amount": 1}
    )

@handler(PAID)
async def key_of_the_event(event, ctx):
    started = time.time()
    await pay(ctx, f"{object_of(event)['id']}-{event.occurred_at:%Y%m%d%H%M}")
    ctx.log.info("paid", seconds=time.time() - started)

@handler(PAID)
async def too_old_by_then(event, ctx):
    if datetime.now(UTC) - event.occurred_at < dt.timedelta(days=30):
        await pay(ctx, f"{object_of(event)['id']}-{datetime.now(UTC):%Y%m%d}")

@handler(PAID)
async def once_a_week(event, ctx):
    customer = object_of(event)["customer"]
    await ctx.db.execute("select pg_advisory_xact_lock(hashtext($1))", customer)
    last = await ctx.db.fetchval("select sent from reminders where customer = $1", customer)
    now = datetime.now(UTC)
    if last is None or isinstance(last, datetime) and last < now - dt.timedelta(days=7):
        await ctx.upsert("reminders", key={"customer": customer}, values={"sent": now})
"""


def test_a_key_that_is_made_of_the_clock_is_found(reviewed: Rehearse) -> None:
    reports = reviewed(CLOCKS)
    found = {
        name: [f for f in report.findings if f.schedule.endswith("the second time 100 days later")]
        for name, report in reports.items()
    }
    assert {name: len(findings) for name, findings in found.items()} == {
        "key_of_the_minute": 1,
        "key_of_the_hour": 1,
        "key_of_the_month": 1,
        "once_per_day": 1,
        "job_of_the_day": 1,
        "row_of_the_day": 1,
        "key_of_the_event": 0,
        "too_old_by_then": 0,
        "once_a_week": 0,
    }
    assert {f.advice for findings in found.values() for f in findings} == {CLOCK_ADVICE}
    assert reports["key_of_the_event"].verdict is Verdict.SAFE
    assert reports["once_a_week"].verdict is Verdict.SAFE
