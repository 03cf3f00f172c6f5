"""Orders for everything that matches, on real processes: killed, stopped, resumed and from afar."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any, Final

import pytest

from tests.e2e.test_failpoints import ORDERING
from tests.support.bulk import add_dead, add_events, blocked, clerk
from tests.support.forked import Death
from tests.support.ledger import Reader
from tests.support.processes import Project, Running
from tests.support.waiting import PATIENCE_S, until

TOKEN: Final = "admin-token-of-the-suite"
ROUTES: Final = """
schema: [handlers/schema.sql]
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [handlers.shop]
"""
HANDLERS: Final = '''
"""Handlers without any idempotency of their own: a second application shows."""

from gateway import Context, Event, handler


async def note(event: Event, ctx: Context, name: str) -> None:
    await ctx.db.execute(
        "insert into effects (event_id, handler, note) values ($1, $2, $3)",
        event.id, name, event.payload["key"],
    )


@handler("a.*")
async def mail(event: Event, ctx: Context) -> None:
    await note(event, ctx, "mail")


@handler("a.*")
async def books(event: Event, ctx: Context) -> None:
    await note(event, ctx, "books")


@handler("a.*", order_by="key")
async def ship(event: Event, ctx: Context) -> None:
    await note(event, ctx, "ship")
'''
TIMEOUT: Final = "ReadTimeout: GET 'https://mail.example.com/17' timed out"


@pytest.fixture
def project(project: Project) -> Project:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/shop.py", HANDLERS)
    return project


async def bulk_of(ledger: Reader, bulk_id: int = 1) -> dict[str, Any]:
    found = await ledger.rows("select * from gateway.bulk_orders where id = $1", bulk_id)
    return found[0] if found else {"moved": 0, "status": None}


async def moved(ledger: Reader, at_least: int) -> bool:
    return bool((await bulk_of(ledger))["moved"] >= at_least)


async def finished(ledger: Reader, n: int) -> bool:
    """Nothing waits or runs any more, and so many are done."""
    statuses = await ledger.statuses()
    return statuses.get("done") == n and not statuses.keys() & {"pending", "running"}


async def replays(ledger: Reader) -> list[tuple[int, int]]:
    """How many deliveries were replayed how often."""
    rows = await ledger.rows(
        "select n, count(*) as deliveries from (select count(*) as n from gateway.audit"
        " where action = 'replay' group by delivery_id) as each group by n"
    )
    return [(row["deliveries"], row["n"]) for row in rows]


async def ended(running: Running, code: int) -> None:
    await until(lambda: running.process.poll() is not None)
    assert running.process.poll() == code, running.output


async def test_a_filtered_replay_of_twenty_thousand_is_killed_and_resumed(
    project: Project, ledger: Reader
) -> None:
    """Three handlers: of one, what timed out is replayed once each; the others are untouched."""
    await add_events(ledger, 10_000)
    await add_dead(ledger, 10_000, "handlers.shop.mail", error=TIMEOUT)
    await ledger.run(
        "update gateway.deliveries set error = 'ValueError: no address' where id % 5 = 0"
    )
    await add_dead(ledger, 6_000, "handlers.shop.books", error=TIMEOUT)
    await add_dead(ledger, 4_000, "handlers.shop.ship", error=TIMEOUT, ordered=True)
    assert await ledger.statuses() == {"dead": 20_000}
    others = (  # but for their causes, which the sweep tells
        "select md5(string_agg((to_jsonb(d) - 'cause')::text, ' ' order by id))"
        " from gateway.deliveries d"
        " where handler <> 'handlers.shop.mail' or error like 'ValueError%'"
    )
    untouched = await ledger.value(others)
    asked = ("--dead", "--handler", "handlers.shop.mail", "--error", "get … timed", "--yes")
    with project.process("worker"):
        with project.process("replay", *asked, "--rate", "500", "--reason", "fixed") as command:
            await until(lambda: moved(ledger, 500))
            command.kill()
            assert "8,000 dead letters match." in command.output
        killed = await bulk_of(ledger)
        assert killed["status"] == "running"
        assert 500 <= killed["moved"] < 8_000
        audited = "select count(*) from gateway.audit where action = 'replay'"
        assert await ledger.value(audited) == killed["moved"]
        [listed] = json.loads(project.run("bulk", "--json").stdout)
        assert (listed["bulk_id"], listed["moved"], listed["total"], listed["filter"]) == (
            1, killed["moved"], 8_000, {"handler": "handlers.shop.mail", "error": "get … timed"},
        )  # fmt: skip
        resumed = project.run("replay", "--resume", "1", "--rate", "4000")
        assert (resumed.returncode, resumed.stdout) == (
            0,
            "Bulk operation 1 is done: 8,000 replayed.\n",
        )
        assert "bulk operation 1: replaying: 8,000 of 8,000, " in resumed.stderr
        assert "/s" in resumed.stderr
        await until(lambda: finished(ledger, 8_000))
    assert await replays(ledger) == [(8_000, 1)]
    assert await ledger.value(others) == untouched
    effects = await ledger.row(
        "select count(*) as n, count(distinct event_id) as events, max(handler) as handler"
        " from public.effects"
    )
    assert tuple(effects.values()) == (8_000, 8_000, "mail")
    audit = await ledger.rows(
        "select distinct order_id, reason from gateway.audit where action = 'replay'"
    )
    assert [tuple(row.values()) for row in audit] == [(1, "fixed")]


@pytest.mark.parametrize("step", ORDERING)
async def test_a_bulk_operation_dies_between_its_steps(
    step: str, project: Project, ledger: Reader
) -> None:
    """What was not committed was not done; what was is not done again, and gets its turn."""
    await add_events(ledger, 1_200)
    await add_dead(ledger, 1_200, "handlers.shop.ship", ordered=True)
    with project.doomed(Death(step, 2), "replay", "--dead", "--yes") as command:
        await ended(command, -signal.SIGKILL)
    expected = {"bulk.marked": 500, "bulk.stepped": 1_000}[step]
    assert (await bulk_of(ledger))["moved"] == expected
    assert await ledger.statuses() == {"dead": 1_200 - expected, "pending": expected}
    with project.process("worker"):
        resumed = project.run("replay", "--resume", "1")
        assert resumed.stdout == "Bulk operation 1 is done: 1,200 replayed.\n"
        await until(lambda: finished(ledger, 1_200))
    assert await replays(ledger) == [(1_200, 1)]
    effects = await ledger.rows("select event_id from public.effects order by note, n")
    ran = [int(row["event_id"].removeprefix("evt_")) for row in effects]
    assert ran == [n for key in range(5) for n in range(1, 1_201) if n % 5 == key]


async def test_ctrl_c_stops_a_bulk_operation_and_says_how_to_resume_it(
    project: Project, ledger: Reader
) -> None:
    await add_events(ledger, 3_000)
    await add_dead(ledger, 3_000)
    with project.process("replay", "--dead", "--yes", "--rate", "100") as command:
        await until(lambda: moved(ledger, 1))
        command.process.send_signal(signal.SIGINT)
        await ended(command, 130)
        assert "resume it with `gateway bulk resume 1`" in command.output
        assert "Traceback" not in command.output
    stopped = await bulk_of(ledger)
    assert stopped["status"] == "stopped"
    wrong = project.run("discard", "--resume", "1")
    assert (wrong.returncode, wrong.stderr) == (
        1, "error: bulk operation 1 is one to replay: use `gateway bulk resume 1`\n",
    )  # fmt: skip
    assert project.run("replay", "--resume", "1", "--rate", "100000").returncode == 0
    assert await replays(ledger) == [(3_000, 1)]
    again = project.run("replay", "--resume", "1")
    assert (again.returncode, again.stderr.startswith("error: bulk operation 1 is done")) == (
        1,
        True,
    )
    assert "there is no bulk operation 7" in project.run("replay", "--resume", "7").stderr


async def test_bulk_shows_stops_and_resumes_one(project: Project, ledger: Reader) -> None:
    await add_events(ledger, 1_000)
    await add_dead(ledger, 1_000)
    with project.process("replay", "--dead", "--yes", "--rate", "100") as command:
        await until(lambda: moved(ledger, 1))
        stopped = project.run("bulk", "stop", "1", "--reason", "the wrong day")
        assert stopped.stdout.startswith("bulk operation 1 is stopped, at ")
        await ended(command, 1)
        assert "bulk operation 1 is stopped" in command.output
    [shown] = json.loads(project.run("bulk", "show", "1", "--json").stdout)
    assert (shown["bulk_id"], shown["status"], shown["total"]) == (1, "stopped", 1_000)
    assert " stopped " in project.run("bulk", "show", "1").stdout
    resumed = project.run("bulk", "resume", "1", "--rate", "100000")
    assert resumed.stdout == "Bulk operation 1 is done: 1,000 replayed.\n"
    assert await replays(ledger) == [(1_000, 1)]
    audit = await ledger.rows(
        "select action, reason from gateway.audit where delivery_id is null order by id"
    )
    assert [tuple(row.values()) for row in audit] == [
        ("bulk replay", None), ("stop bulk", "the wrong day"), ("resume bulk", None),
    ]  # fmt: skip


async def test_from_afar_a_bulk_operation_is_watched_stopped_and_resumed(
    project: Project, ledger: Reader
) -> None:
    await add_events(ledger, 2_000)
    await add_dead(ledger, 2_000, "handlers.shop.books")
    token = {"GATEWAY_ADMIN_TOKEN": TOKEN}
    with project.serve(**token) as serving:
        await serving.ready()
        afar = {**token, "GATEWAY_DATABASE_URL": ""}
        at = ("--url", serving.url)
        with project.process("discard", "--dead", "--yes", "--rate", "100", *at, **afar) as command:
            await until(lambda: moved(ledger, 1))
            command.process.send_signal(signal.SIGINT)
            await ended(command, 130)
            assert f"`gateway bulk resume 1 --url {serving.url}`" in command.output
        stopped = await bulk_of(ledger)
        assert (stopped["status"], stopped["actor"].endswith(" (api)")) == ("stopped", True)
        assert stopped["moved"] < 2_000
        with project.process("discard", "--resume", "1", "--rate", "50", *at, **afar) as command:
            await until(lambda: moved(ledger, stopped["moved"] + 1))
            serving.running.kill()
            await ended(command, 1)
            assert "resume it with `gateway bulk resume 1" in command.output
    left = await bulk_of(ledger)
    assert (left["status"], left["moved"] < 2_000) == ("running", True)
    await ledger.run("update gateway.bulk_orders set stepped_at = now() - interval '1 min'")
    assert " idle " in project.run("bulk").stdout
    with project.serve(**token) as serving:
        await serving.ready()
        at = ("--url", serving.url)
        ran = project.run("discard", "--resume", "1", "--rate", "100000", *at, **afar)
        assert (ran.returncode, ran.stdout) == (0, "Bulk operation 1 is done: 2,000 discarded.\n")
        listed = [
            json.loads(project.run("bulk", "--json", *way, **token).stdout) for way in ((), at)
        ]
    assert listed[0] == listed[1]
    assert await ledger.statuses() == {"discarded": 2_000}
    audit = "select count(*) from gateway.audit where action = 'discard'"
    assert await ledger.value(audit) == 2_000


async def test_a_lost_connection_ends_a_command_with_how_to_go_on_and_a_serve_goes_on(
    project: Project, ledger: Reader
) -> None:
    await add_events(ledger, 1_000)
    await add_dead(ledger, 1_000)
    cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1"
    with project.process("replay", "--dead", "--yes", "--rate", "100") as command:
        await until(lambda: moved(ledger, 1))
        await ledger.run(cut, "gateway command")
        await ended(command, 1)
        assert "resume it with `gateway bulk resume 1`" in command.output
        assert "Traceback" not in command.output
    token = {"GATEWAY_ADMIN_TOKEN": TOKEN}
    with project.serve(**token) as serving:
        await serving.ready()
        at = ("--rate", "100", "--url", serving.url)
        with project.process("replay", "--resume", "1", *at, **token) as command:
            await until(lambda: moved(ledger, 100))
            url = project.environ["GATEWAY_DATABASE_URL"]
            async with clerk(url) as holder, holder.connection.transaction():
                hold = "select from gateway.bulk_orders where id = 1 for update"
                await holder.connection.execute(hold)
                await until(lambda: blocked(ledger))
                await ledger.run(cut, "gateway api")
            await serving.running.says("bulk_delayed")
            await until(lambda: done(ledger))
    assert await replays(ledger) == [(1_000, 1)]


async def done(ledger: Reader) -> bool:
    return bool((await bulk_of(ledger))["status"] == "done")


async def test_a_new_handler_gets_what_came_before_it(project: Project, ledger: Reader) -> None:
    await add_events(ledger, 600)
    await add_events(ledger, 50, prefix="other_", type="z.z")
    asked = ("replay", "--handler", "handlers.shop.ship", "--since", "7d")
    counted = project.run(*asked, "--dry-run")
    assert (counted.returncode, counted.stdout.splitlines()[-1]) == (0, "600 events match.")
    assert await ledger.statuses() == {}
    with project.process("worker"):
        ran = project.run(*asked, "--yes")
        assert ran.stdout.splitlines()[-1] == "Bulk operation 1 is done: 600 delivered."
        await until(lambda: finished(ledger, 600))
    assert project.run(*asked, "--yes").stdout == "No events match.\n"
    effects = await ledger.rows("select event_id from public.effects order by note, n")
    ran_ids = [int(row["event_id"].removeprefix("evt_")) for row in effects]
    assert ran_ids == [n for key in range(5) for n in range(1, 601) if n % 5 == key]
    unknown = project.run("replay", "--handler", "handlers.shop.shop", "--since", "7d", "--yes")
    assert unknown.returncode == 1
    assert "no route has the handler 'handlers.shop.shop'" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("replay", "--dead"), "there is no terminal to ask on"),
        (("discard", "--dead", "--route", "stripe"), "there is no terminal to ask on"),
        (("replay",), "give ids, or --dead"),
        (("discard", "--route", "stripe"), "give ids, or --dead"),
        (("replay", "--handler", "x"), "--handler and --since"),
        (("replay", "--handler", "x", "--since", "1d", "--error", "y"), "--error belongs to"),
        (("replay", "7", "--dead"), "and not both"),
        (("replay", "7", "--dry-run"), "for all that match"),
        (("discard", "7", "--rate", "5"), "for all that match"),
        (("discard", "--resume", "7", "--dry-run"), "--resume takes"),
        (("replay", "--resume", "7", "--dead"), "--resume takes"),
        (("replay", "--dead", "--rate", "0"), "--rate"),
        (("bulk", "stop"), "together with an id"),
        (("bulk", "7"), "not one of"),
        (("bulk", "show", "7", "--rate", "5"), "--rate belongs to resume"),
        (("bulk", "show", "7", "--reason", "x"), "--reason belongs to stop and resume"),
        (("bulk", "stop", "7", "--limit", "5"), "--limit belongs to the listing"),
        (("bulk", "stop", "7", "--json"), "--json belongs to the listing and to show"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    project: Project, arguments: tuple[str, ...], told: str
) -> None:
    ran = project.run(*arguments)
    assert ran.returncode == 2
    assert told in " ".join(ran.stderr.replace("│", "").split())


def on_terminal(project: Project, command: tuple[str, ...], answer: bytes) -> tuple[int, str]:
    """Runs a command that asks on a terminal, and answers it; what was to be seen there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", *command],
        cwd=project.directory,
        env={**project.environ, "TERM": "xterm", "COLUMNS": "140"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the terminal is closed
        while piece := os.read(ours, 4096):
            shown += piece
            if shown.endswith(b"[y/N]: "):
                os.write(ours, answer)
    os.close(ours)
    return process.wait(PATIENCE_S), shown.decode()


@pytest.mark.parametrize(("answer", "left"), [(b"y\n", "pending"), (b"n\n", "dead")])
async def test_on_a_terminal_it_asks_first_and_shows_a_bar(
    project: Project, ledger: Reader, answer: bytes, left: str
) -> None:
    await add_events(ledger, 700)
    await add_dead(ledger, 700, error=TIMEOUT)
    code, text = await asyncio.to_thread(on_terminal, project, ("replay", "--dead"), answer)
    assert TIMEOUT in text
    assert "700 dead letters match." in text
    assert code == (0 if left == "pending" else 1), text
    assert ("700 of 700" in text) is (left == "pending")
    assert ("━" in text) is (left == "pending")
    assert await ledger.statuses() == {left: 700}


async def test_a_module_in_the_place_of_a_handler_is_told(project: Project, ledger: Reader) -> None:
    """That nothing of it is dead would be good news, and wrong."""
    for arguments in (
        ("dead",), ("dead", "--group"), ("replay", "--dead", "--yes"), ("events",),
    ):  # fmt: skip
        result = await asyncio.to_thread(project.run, *arguments, "--handler", "handlers.billing")
        assert result.returncode == 0, result.stderr
        assert "named with its module and its function" in result.stdout, arguments
