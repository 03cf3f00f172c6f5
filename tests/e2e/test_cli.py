"""The commands: what they print, and how they say no."""

import json
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from gateway.cli import app
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.ports import free_port
from tests.support.processes import Project, stripe_request
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(get_group(app).commands)


def one_line(result: "subprocess.CompletedProcess[str]", code: int) -> str:
    """The error of a command that failed: one line, no traceback, the right exit code."""
    assert result.returncode == code, (result.stdout, result.stderr)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage: " in result.output


def test_the_commands_are_those_of_the_design() -> None:
    expected = (
        "up serve worker migrate check schema routes send status events show dead replay discard"
        " init new rehearse audit pause resume prune erase publish"
        " bulk alerts doctor rekey reconcile providers rejected effects"
    )
    assert sorted(expected.split()) == COMMANDS


def test_the_version_is_that_of_the_code_and_of_its_schema() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    *_, newest = sorted(ROOT.glob("gateway/ledger/migrations/*.sql"))
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith(
        f"gateway {project['version']}, schema {int(newest.name[:4])}, Python "
    )


def test_an_unknown_command_is_exit_2(project: Project) -> None:
    assert project.run("fly").returncode == 2
    assert project.run("send").returncode == 2
    assert project.run("events", "--limit", "0").returncode == 2
    assert project.run("events", "--since", "yesterdayish").returncode == 2


def test_what_an_operation_does_not_take_is_one_clear_line(project: Project) -> None:
    for command in (["pause", "stripe", "--reason", ""], ["pause", "", "--reason", "why"]):
        assert "found ''; expected" in one_line(project.run(*command), 2)


def test_check_says_that_all_is_in_order(project: Project) -> None:
    result = project.run("check")
    assert (result.returncode, result.stderr) == (0, "")
    assert "2 routes, 4 handlers, all in order" in result.stdout


def test_check_reports_every_problem_at_once(project: Project) -> None:
    project.write("handlers/effects.py", "import no_such_module\n")
    result = project.run("check", STRIPE_WEBHOOK_SECRET="")
    assert result.returncode == 2
    assert "STRIPE_WEBHOOK_SECRET" in result.stderr
    assert "no_such_module" in result.stderr
    assert "Traceback" not in result.stderr


def test_schema_is_json(project: Project) -> None:
    schema = json.loads(project.run("schema").stdout)
    assert schema["$schema"].startswith("https://json-schema.org/")


def test_routes_lists_who_handles_what(project: Project) -> None:
    [stripe, github] = json.loads(project.run("routes", "--json").stdout)
    assert (stripe["route"], stripe["path"]) == ("stripe", "/webhooks/stripe")
    assert [h["handler"] for h in github["handlers"]] == [
        "handlers.effects.count",
        "handlers.effects.slow",
    ]
    assert "handlers.effects.slow (slow.*)" in project.run("routes").stdout


def test_an_unreachable_database_is_one_clear_line(project: Project) -> None:
    port = free_port()
    url = f"postgresql://someone:hush@127.0.0.1:{port}/nothing"
    away = {"GATEWAY_DATABASE_URL": url, "GATEWAY_SPOOL_SIZE": "0B"}
    for command in (["migrate"], ["serve"], ["worker"], ["events"], ["replay", "1"]):
        line = one_line(project.run(*command, **away), 1)
        where = f"127.0.0.1:{port} (GATEWAY_DATABASE_URL)"
        assert f"Postgres cannot be reached: {where} refused the connection" in line
        assert "hush" not in line


def test_a_server_that_knows_no_such_database_is_told_from_one_that_is_away(
    project: Project, empty_database_url: str
) -> None:
    url = urlsplit(empty_database_url)
    line = one_line(
        project.run("migrate", GATEWAY_DATABASE_URL=url._replace(path="/nothing").geturl()), 1
    )
    assert "error: Postgres at the socket /" in line
    assert '(GATEWAY_DATABASE_URL): database "nothing" does not exist' in line


def test_no_url_at_all_is_exit_2(project: Project) -> None:
    for command in (["serve"], ["worker"], ["events"]):
        line = one_line(project.run(*command, GATEWAY_DATABASE_URL=""), 2)
        assert "GATEWAY_DATABASE_URL: found nothing" in line


def test_a_database_that_was_not_migrated_is_one_clear_line(
    project: Project, empty_database_url: str
) -> None:
    for command in (["serve"], ["worker"], ["events"], ["status"]):
        line = one_line(project.run(*command, GATEWAY_DATABASE_URL=empty_database_url), 1)
        assert "run `gateway migrate`" in line


def test_serve_refuses_a_missing_secret_and_worker_needs_none(project: Project) -> None:
    line = one_line(project.run("serve", GITHUB_WEBHOOK_SECRET=""), 2)
    assert "config/routes.yaml:" in line
    assert "GITHUB_WEBHOOK_SECRET" in line


def test_send_to_nobody_is_one_clear_line(project: Project) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    line = one_line(project.run("send", "stripe", "invoice.paid", "--url", url), 1)
    assert "does not answer" in line
    assert "`gateway up`" in line


def test_send_on_an_unknown_route_names_those_there_are(project: Project) -> None:
    line = one_line(project.run("send", "paypal", "x"), 1)
    assert "it has stripe, github" in line


async def test_send_count_body_and_refusal(project: Project, ledger: Reader) -> None:
    project.run("migrate")
    body, _ = stripe_request("evt_from_file")
    (project.directory / "event.json").write_bytes(body)
    with project.serve() as serving:
        await serving.ready()
        many = project.run("send", "github", "push", "--count", "25", "--url", serving.url)
        assert "25 sent: 25 × 200" in many.stdout  # noqa: RUF001
        one = project.run(
            "send", "stripe", "invoice.paid", "--body", "event.json", "--url", serving.url
        )
        assert '{"status":"accepted","event_id":"evt_from_file"}' in one.stdout
        refused = project.run(
            "send", "stripe", "invoice.paid", "--url", serving.url, STRIPE_WEBHOOK_SECRET="whsec_x"
        )
        assert '403 {"error":"BAD_SIGNATURE"}' in refused.stdout
        assert one_line(refused, 1) == "error: 1 of 1 were not accepted"
    assert await ledger.value("select count(*) from gateway.processed_events") == 26


async def test_send_notes_a_type_that_the_provider_is_not_known_to_send(
    project: Project,
) -> None:
    project.run("migrate")
    with project.serve() as serving:
        await serving.ready()
        for route, type, told in [
            (
                "stripe",
                "invoice.payed",
                "Stripe is not known to send invoice.payed (did you mean invoice.paid?)",
            ),
            (
                "github",
                "issues.open",
                "GitHub is not known to send issues.open (did you mean issues.opened?)",
            ),
            ("stripe", "zz.top", "Stripe is not known to send zz.top"),
        ]:
            sent = project.run("send", route, type, "--url", serving.url)
            [notice, answer] = sent.stdout.splitlines()
            assert (sent.returncode, notice) == (0, f"notice: {told}; it is sent all the same")
            assert answer.startswith('200 {"status":"accepted"')
        known = project.run("send", "stripe", "invoice.will_be_due", "--url", serving.url)
        assert known.stdout.startswith("200 ")


async def test_events_show_dead_and_replay(
    project: Project, ledger: Reader, database_url: str
) -> None:
    [answer] = await claim_all(
        database_url,
        [make_claim("evt_1", handlers=["handlers.effects.count"])],
    )
    await claim_all(database_url, [make_claim("evt_2", type="customer.created", handlers=[])])
    [delivery_id] = answer.delivery_ids
    await ledger.run(
        "update gateway.deliveries set status = 'dead', attempts = 3, finished_at = now(),"
        " error = 'ValueError: [red]boom[/red] \x1b[31m'"
    )
    events = json.loads(project.run("events", "--type", "invoice.*", "--json").stdout)
    assert [(e["event_id"], e["route"], e["type"]) for e in events] == [
        ("evt_1", "stripe", "invoice.paid")
    ]
    found = project.run("events", "--handler", "nobody").stdout
    assert found.startswith("No event matches. ")
    assert json.loads(project.run("events", "--until", "1h", "--json").stdout) == []
    [dead] = json.loads(project.run("dead", "--since", "1h", "--json").stdout)
    assert (dead["delivery_id"], dead["event_id"], dead["handler"]) == (
        delivery_id,
        "evt_1",
        "handlers.effects.count",
    )
    assert (dead["status"], dead["attempts"]) == ("dead", 3)
    shown = project.run("dead").stdout
    assert "[red]boom[/red] \\x1b[31m" in shown
    assert "\x1b" not in shown
    assert "dead" in project.run("show", str(delivery_id)).stdout
    assert project.run("show", "evt_1", "--body").stdout == '{"id":"evt_1","type":"invoice.paid"}'
    replayed = project.run("replay", str(delivery_id), "--reason", "fixed")
    assert (replayed.returncode, replayed.stdout) == (0, f"delivery {delivery_id}: replayed\n")
    with project.process("worker"):
        await until(lambda: _done(ledger))
    again = project.run("replay", str(delivery_id))
    assert again.returncode == 0
    history = project.run("show", "evt_1").stdout
    assert "replay by" in history
    assert ": fixed" in history


async def _done(ledger: Reader) -> bool:
    return bool((await ledger.delivery())["status"] == "done")


async def test_a_forbidden_replay_is_one_clear_line(
    project: Project, ledger: Reader, database_url: str
) -> None:
    assert "there is no delivery 7" in one_line(project.run("replay", "7"), 1)
    await claim_all(database_url, [make_claim("evt_1")])
    await ledger.run(
        "update gateway.deliveries set status = 'running', lease_token = gen_random_uuid()"
    )
    delivery_id = (await ledger.delivery())["id"]
    assert "is running right now" in one_line(project.run("replay", str(delivery_id)), 1)


async def test_replay_takes_an_event_id(
    project: Project, ledger: Reader, database_url: str
) -> None:
    handlers = ["handlers.effects.count", "handlers.effects.slow"]
    [answer] = await claim_all(database_url, [make_claim("evt_1", handlers=handlers)])
    dead, done = sorted(answer.delivery_ids)
    await ledger.run("update gateway.deliveries set status = 'done', finished_at = now()")
    await ledger.run("update gateway.deliveries set status = 'dead' where id = $1", dead)

    replayed = project.run("replay", "evt_1", "--reason", "fixed")
    assert (replayed.returncode, replayed.stderr) == (0, "")
    rows = await ledger.rows("select id, handler from gateway.deliveries")
    named = {row["id"]: row["handler"] for row in rows}
    assert replayed.stdout.splitlines() == [
        f"delivery {done} ({named[done]}) is done, and left alone:"
        f" `gateway replay {done}` runs it again",
        f"delivery {dead} ({named[dead]}): replayed",
    ]
    assert await ledger.statuses() == {"pending": 1, "done": 1}
    assert ": fixed" in project.run("show", "evt_1").stdout

    await ledger.run("update gateway.deliveries set status = 'done', finished_at = now()")
    narrowed = project.run("replay", "evt_1", "--handler", named[done])
    assert narrowed.stdout == f"delivery {done} ({named[done]}): replayed\n"
    await ledger.run("update gateway.deliveries set status = 'done', finished_at = now()")
    both = project.run("replay", "evt_1")
    assert both.stdout.splitlines() == [
        f"delivery {dead} ({named[dead]}): replayed",
        f"delivery {done} ({named[done]}): replayed",
    ]


async def test_an_event_id_of_several_routes_wants_a_route(
    project: Project, ledger: Reader, database_url: str
) -> None:
    claims = [make_claim("evt_1"), make_claim("evt_1", route="github")]
    await claim_all(database_url, claims)
    line = one_line(project.run("replay", "evt_1"), 1)
    assert (
        line == "error: event evt_1 is on several routes (github, stripe): say which with --route"
    )
    assert project.run("replay", "evt_1", "--route", "github").returncode == 0
    replayed = "select route from gateway.deliveries d where exists (select from gateway.audit a"
    assert await ledger.value(f"{replayed} where a.delivery_id = d.id)") == "github"


async def test_with_a_route_digits_are_an_event_id(
    project: Project, ledger: Reader, database_url: str
) -> None:
    [one, two] = await claim_all(database_url, [make_claim("evt_1"), make_claim("1")])
    [first], [second] = one.delivery_ids, two.delivery_ids
    assert first == 1
    assert f"delivery {first}: replayed" in project.run("replay", "1").stdout
    assert f"delivery {second} (" in project.run("replay", "1", "--route", "stripe").stdout
    none = project.run("replay", "2", "--route", "stripe")
    assert one_line(none, 1) == "error: there is no event '2' on route 'stripe'"


async def test_an_event_id_that_leads_to_no_delivery_says_why(
    project: Project, ledger: Reader, database_url: str
) -> None:
    await claim_all(database_url, [make_claim("evt_1", handlers=[]), make_claim("evt_2")])
    assert one_line(project.run("replay", "evt_9"), 1) == "error: there is no event 'evt_9'"
    nobody = one_line(project.run("replay", "evt_1"), 1)
    assert nobody.startswith("error: event evt_1 has no deliveries: no handler took it")
    other = one_line(project.run("discard", "evt_2", "--handler", "handlers.none"), 1)
    assert (
        other
        == "error: event evt_2 has no delivery of handler handlers.none: it has handlers.count"
    )
    result = project.run("replay", "1", "--handler", "handlers.count")
    assert result.returncode == 2
    assert "--route and --handler are for event ids" in result.stderr
    assert project.run("discard", "evt_2").stdout.endswith("(handlers.count): discarded\n")


async def test_discard_gives_up_what_it_may_and_says_what_it_may_not(
    project: Project, ledger: Reader, database_url: str
) -> None:
    answers = await claim_all(database_url, [make_claim("evt_1"), make_claim("evt_2")])
    dead, running = (answer.delivery_ids[0] for answer in answers)
    await ledger.run(
        "update gateway.deliveries set status = 'dead', finished_at = now() where id = $1", dead
    )
    await ledger.run(
        "update gateway.deliveries set status = 'running', lease_token = gen_random_uuid()"
        " where id = $1",
        running,
    )
    result = project.run("discard", *map(str, (running, dead, dead)), "--reason", "a test order")
    assert result.stdout == f"delivery {dead}: discarded\n"
    assert f"delivery {running} is running: only what is pending" in one_line(result, 1)
    assert await ledger.statuses() == {"discarded": 1, "running": 1}
    history = project.run("show", "evt_1").stdout
    assert "discard by" in history
    assert ": a test order" in history
    assert json.loads(project.run("dead", "--json").stdout) == []
    assert "there is no delivery 7777" in one_line(project.run("discard", "7777"), 1)
    assert project.run("replay", str(dead)).returncode == 0


async def test_show_says_that_what_is_due_is_paused(
    project: Project, ledger: Reader, database_url: str
) -> None:
    """Else a replay that waits for a resume looks like one that was swallowed."""
    await claim_all(database_url, [make_claim("evt_1", handlers=["handlers.effects.count"])])
    assert "paused" not in project.run("show", "evt_1").stdout
    assert project.run("pause", "stripe", "--reason", "bad deploy").returncode == 0
    shown = project.run("show", "evt_1").stdout
    assert "waits: its route was paused by" in shown
    assert "ago: bad deploy" in shown
    await ledger.run("update gateway.deliveries set status = 'done', finished_at = now()")
    assert "paused" not in project.run("show", "evt_1").stdout


def test_show_of_nothing_is_one_clear_line(project: Project) -> None:
    assert "there is no event or delivery 'evt_x'" in one_line(project.run("show", "evt_x"), 1)
