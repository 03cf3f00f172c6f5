"""`gateway rehearse` as people run it: what it prints, and how it exits."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.dev.embedded import Postgres
from gateway.providers.samples import make_sample
from tests.support.processes import Project

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"

HANDLERS = '''
"""One handler that stands to be run twice, and one that does not."""

from gateway import Context, Event, handler


@handler("customer.created")
async def keep(event: Event, ctx: Context) -> None:
    print("keeping")
    await ctx.upsert("names", key={"name": event.id}, values={})


@handler("payment_intent.succeeded")
async def count(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id) values ($1)", event.id)


@handler("file.created")
async def file(event: Event, ctx: Context) -> None:
    assert await ctx.db.fetchval("select true from names where name = 'seeded'")
    await ctx.upsert("names", key={"name": event.id}, values={})
'''
SCHEMA = """
create table if not exists effects (
    n bigint generated always as identity, event_id text, handler text, note text
);
create table if not exists names (name text primary key);
"""
ROUTES = """
schema: [handlers/schema.sql]
routes:
  stripe:
    provider: stripe
    secrets: [env:NO_SUCH_SECRET]
    handlers: [handlers.effects]
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose own database and secrets a rehearsal must do without."""
    project = Project(tmp_path, NOWHERE, "redis://127.0.0.1:1/0")
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/effects.py", HANDLERS)
    project.write("handlers/schema.sql", SCHEMA)
    return project


def test_a_finding_is_told_in_words_and_is_exit_1(project: Project) -> None:
    result = project.run("rehearse")
    assert result.returncode == 1, result.stderr
    lines = [line.split("  ")[0:2] for line in result.stdout.splitlines() if line[0] != " "]
    safe = lines[0].pop()
    assert safe.startswith(
        "safe to run again: twice in a row (2), killed half-way (2), timed out before the commit, "
        "twice at the same time, two events at the same time"
    )
    assert "  not tried: " in result.stdout
    assert lines[:3] == [
        ["handlers.effects.keep"],
        ["handlers.effects.count", "NOT SAFE TO RUN AGAIN"],
        ["handlers.effects.file", "not rehearsed"],
    ]
    assert "run twice in a row (on payment_intent.succeeded): effects ends differently" in (
        result.stdout
    )
    assert "    + event_id=evt_" in result.stdout
    place = "handlers/effects.py:15: await ctx.db.execute("
    assert place in result.stdout
    assert "use ctx.upsert" in result.stdout
    counts = "1 safe to run again, 1 not safe to run again, 1 not rehearsed"
    assert f"3 handlers: {counts}; " in result.stdout
    assert set(result.stderr.splitlines()) == {"keeping"}


def test_a_safe_handler_is_exit_0_and_json_is_one_array(
    project: Project, postgres: Postgres
) -> None:
    url = postgres.url
    result = project.run("rehearse", "keep", "--json", GATEWAY_TEST_DATABASE_URL=url)
    assert result.returncode == 0, result.stderr
    [report] = json.loads(result.stdout)
    assert report["handler"] == "handlers.effects.keep"
    assert report["verdict"] == "safe_to_run_again"
    assert report["tried"]["twice_in_a_row"] == 2
    assert "a_later_event_first" in report["not_tried"]
    assert report["events"] == ["customer.created"]
    assert report["schedules"] >= 5
    assert report["findings"] == []


def test_a_named_handler_without_a_sample_is_exit_1_and_with_what_it_needs_exit_0(
    project: Project, postgres: Postgres
) -> None:
    url = postgres.url
    result = project.run("rehearse", "file", GATEWAY_TEST_DATABASE_URL=url)
    assert result.returncode == 1
    assert "record one with `gateway show ID --save FILE` and pass --event FILE" in result.stdout
    sample = make_sample("stripe", "file.created", now=datetime(2026, 1, 1, tzinfo=UTC))
    (project.directory / "event.json").write_bytes(sample.body)
    project.write("rows.sql", "insert into names values ('seeded')")
    given = ["--event", "event.json", "--seed", "rows.sql"]
    result = project.run("rehearse", *given, GATEWAY_TEST_DATABASE_URL=url)
    assert result.returncode == 0, (result.stdout, result.stderr)
    assert "handlers.effects.file  safe to run again: twice in a row" in result.stdout
    assert "file.created (event.json)" in result.stdout


TWO_ROUTES = """
schema: [handlers/schema.sql]
routes:
  stripe:
    provider: stripe
    secrets: [env:NO_SUCH_SECRET]
    handlers: [handlers.effects]
  github:
    provider: github
    secrets: [env:NO_SUCH_SECRET]
    handlers: [handlers.effects]
"""
ANY = """
from gateway import Context, Event, handler


@handler("*")
async def keep(event: Event, ctx: Context) -> None:
    await ctx.upsert("names", key={"name": event.type}, values={})
"""


@pytest.mark.parametrize(
    ("sender", "type", "options", "shown"),
    [
        ("stripe", "invoice.paid", [], "invoice.paid (event.json)"),
        ("github", "issues.opened", ["--type", "issues.opened"], "issues.opened (event.json)"),
        ("github", "issues.opened", ["--type", "issues"], "issues.opened (event.json)"),
        ("github", "push", ["--type", "push", "--provider", "github"], "push (event.json)"),
    ],
)
def test_an_event_as_its_sender_shows_it_is_taken_on_the_route_of_the_sender(
    project: Project, postgres: Postgres, sender: str, type: str, options: list[str], shown: str
) -> None:
    project.write("config/routes.yaml", TWO_ROUTES)
    project.write("handlers/effects.py", ANY)
    sample = make_sample(sender, type, now=datetime(2026, 1, 1, tzinfo=UTC))
    (project.directory / "event.json").write_bytes(sample.body)
    given = ["keep", "--event", "event.json", "--json", *options]
    result = project.run("rehearse", *given, GATEWAY_TEST_DATABASE_URL=postgres.url)
    assert result.returncode == 0, (result.stdout, result.stderr)
    [report] = json.loads(result.stdout)
    assert (report["route"], report["events"]) == (sender, [shown])


def test_a_body_that_does_not_say_its_type_is_refused_with_what_to_add(project: Project) -> None:
    project.write("config/routes.yaml", TWO_ROUTES)
    sample = make_sample("github", "push", now=datetime(2026, 1, 1, tzinfo=UTC))
    (project.directory / "event.json").write_bytes(sample.body)
    result = project.run("rehearse", "--event", "event.json")
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("error: event.json: a body of github does not say its type")
    assert "add --type, such as --type issues.opened" in line


def test_a_type_without_a_file_is_refused(project: Project) -> None:
    result = project.run("rehearse", "--type", "push")
    assert result.returncode == 2
    assert "add --event FILE" in result.stderr


FORGETFUL = '''
"""One that does nothing on its sample, one that reads an answer, one that leaves a task behind."""

import asyncio

from gateway import Context, Event, handler


@handler("charge.dispute.created")
async def wait_and_see(event: Event, ctx: Context) -> None:
    if event.payload["data"]["object"]["amount"] > 10**9:
        await ctx.http.post("https://mail.example/send")


@handler("customer.updated")
async def read(event: Event, ctx: Context) -> None:
    answer = await ctx.http.post("https://search.example/_search?q=1")
    await ctx.upsert("names", key={"name": answer.json()["hits"][0]}, values={})


@handler("customer.updated")
async def leave(event: Event, ctx: Context) -> None:
    asyncio.create_task(ctx.http.post("https://mail.example"))
    await ctx.db.execute("select pg_sleep(0.01)")
'''


LEFT_BEHIND = '    asyncio.create_task(ctx.http.post("https://mail.example"))'


def test_what_did_nothing_is_idle_and_exit_0_and_the_world_can_be_described(
    project: Project, postgres: Postgres
) -> None:
    project.write("handlers/effects.py", FORGETFUL)
    url = "https://search.example/_search?q=*"
    answer = {"method": "POST", "url": url, "status": 200, "json": {"hits": ["one"]}}
    project.write("answers.json", json.dumps([answer]))
    told = ["--answers", "answers.json", "--reads", "https://search.example/*"]
    result = project.run(
        "rehearse", "wait_and_see", "read", *told, GATEWAY_TEST_DATABASE_URL=postgres.url
    )
    assert result.returncode == 0, (result.stdout, result.stderr)
    assert "handlers.effects.wait_and_see  did nothing: nothing could be tried" in result.stdout
    assert "handlers.effects.read  safe to run again: " in result.stdout
    assert "2 handlers: 1 did nothing, 1 safe to run again; " in result.stdout


def test_a_task_that_is_left_behind_is_told_with_its_line_and_without_a_traceback(
    project: Project, postgres: Postgres
) -> None:
    project.write("handlers/effects.py", FORGETFUL)
    result = project.run("rehearse", "leave", GATEWAY_TEST_DATABASE_URL=postgres.url)
    assert result.returncode == 1
    line = 1 + FORGETFUL.splitlines().index(LEFT_BEHIND)
    assert f"handlers/effects.py:{line}: {LEFT_BEHIND.strip()}" in result.stdout
    assert not result.stderr


def test_a_schema_that_postgres_refuses_is_told_with_its_line(
    project: Project, postgres: Postgres
) -> None:
    project.write("handlers/schema.sql", "create table a (b text);\ncreate tabel c ();\n")
    result = project.run("rehearse", GATEWAY_TEST_DATABASE_URL=postgres.url)
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("error: handlers/schema.sql:2: Postgres refused it: ")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["nobody"], 1, "there is no handler 'nobody'; expected one of handlers.effects.count"),
        (["--event", "missing.json"], 1, "missing.json: cannot be read"),
        (["--seed", "missing.sql"], 1, "a schema file cannot be read"),
        (["--answers", "missing.json"], 1, "missing.json: cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    project: Project, arguments: list[str], code: int, told: str
) -> None:
    result = project.run("rehearse", *arguments)
    assert result.returncode == code
    [line] = result.stderr.splitlines()
    assert line.startswith(f"error: {told}")


def test_a_wrong_configuration_is_exit_2(project: Project) -> None:
    project.write("handlers/effects.py", "import no_such_module\n")
    result = project.run("rehearse")
    assert result.returncode == 2
    assert "no_such_module" in result.stderr
    assert "Traceback" not in result.stderr
