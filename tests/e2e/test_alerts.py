"""Alerts with real processes: workers that are killed while they tell, and the command."""

import asyncio
import json
import signal
import subprocess

import orjson
import pytest

from tests.support.forked import Death
from tests.support.ledger import Reader
from tests.support.processes import ROUTES, Project
from tests.support.receiver import Receiver, answer, receiving
from tests.support.waiting import until

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TOKEN = "a-token-for-the-tests"
ALERTS = """
alerts:
  webhook: {url: env:ALERT_URL, sign: env:ALERT_KEY}
  slack: env:SLACK_URL
"""
WEBHOOK = """
alerts:
  webhook: {url: env:ALERT_URL, sign: env:ALERT_KEY}
"""


async def put_dead(ledger: Reader, n: int = 3) -> None:
    await ledger.run(
        "insert into gateway.deliveries (route, event_id, handler, status, error, finished_at)"
        " select 'stripe', 'evt_' || n, 'handlers.gone', 'dead', 'boom', now() - interval '1 min'"
        " from generate_series(1, $1) as n",
        n,
    )


@pytest.mark.parametrize(
    ("step", "times"), [("alert.decided", 1), ("alert.taken", 1), ("alert.sent", 2)]
)
async def test_a_worker_dies_while_it_tells(
    step: str, times: int, project: Project, ledger: Reader
) -> None:
    project.write("config/routes.yaml", WEBHOOK + ROUTES)
    await put_dead(ledger)
    async with receiving() as receiver:
        environ = {"ALERT_URL": receiver.url, "ALERT_KEY": KEY}
        with project.doomed(Death(step), "worker", **environ) as doomed:
            await until(lambda: doomed.process.poll() is not None)
            assert doomed.process.poll() == -signal.SIGKILL, doomed.output
        # The dead worker has the message for a minute: let that be over.
        await ledger.run("update gateway.alert_messages set next_at = now()")
        with project.process("worker", **environ), project.process("worker", **environ):
            await until(lambda: ledger.value("select status = 'sent' from gateway.alert_messages"))
    assert len(receiver.requests) == times
    assert len({request.id for request in receiver.requests}) == 1
    assert orjson.loads(receiver.requests[0].body)["data"]["count"] == 3


async def test_without_a_worker_a_serve_tells_of_the_backlog(
    project: Project, ledger: Reader
) -> None:
    """When all workers are gone, nobody else would."""
    project.write("config/routes.yaml", WEBHOOK + ROUTES)
    await ledger.run(
        "insert into gateway.deliveries (route, event_id, handler, due_at)"
        " values ('stripe', 'evt_1', 'handlers.effects.count', now() - interval '1 h')"
    )
    async with receiving() as receiver:
        environ = {"ALERT_URL": f"{receiver.url}/ALERT-SECRET", "ALERT_KEY": KEY}
        with project.serve(**environ) as serving, project.serve(**environ):
            await until(lambda: ledger.value("select status = 'sent' from gateway.alert_messages"))
        assert "SECRET" not in serving.running.output
    [request] = receiver.requests
    told = orjson.loads(request.body)["data"]
    assert (told["kind"], told["count"], told["orphaned"]) == ("backlog", 1, True)
    assert told["text"].endswith("No worker has this handler.")


async def test_a_serve_without_the_references_leaves_alerts_to_the_workers(
    project: Project,
) -> None:
    project.write("config/routes.yaml", WEBHOOK + ROUTES)
    with project.serve() as serving:
        await serving.ready()
    assert "alerts_only_by_workers" in serving.running.output
    assert "env:ALERT_URL, which is not set" in serving.running.output


async def run(
    project: Project, receiver: Receiver, *arguments: str, **environ: str
) -> "subprocess.CompletedProcess[str]":
    """A command, while the receiver goes on answering."""
    known = {"ALERT_URL": f"{receiver.url}/ALERT-SECRET", "ALERT_KEY": KEY}
    slack = {"SLACK_URL": f"{receiver.url}/SLACK-SECRET"}
    return await asyncio.to_thread(project.run, *arguments, **known, **slack, **environ)


async def test_a_test_message_shows_what_each_destination_makes_of_it(
    project: Project, ledger: Reader
) -> None:
    project.write("config/routes.yaml", ALERTS + ROUTES)
    async with receiving(answer(204)) as receiver:
        result = await run(project, receiver, "alerts", "--test")
        assert (result.returncode, result.stderr) == (0, "")
        lines = [line.split() for line in result.stdout.splitlines()]
        assert lines[1:] == [["webhook", "yes", "status", "204"], ["slack", "yes", "status", "204"]]
        assert "This is a test" in str([request.body for request in receiver.requests])
        receiver.replies[:] = [answer(404, b"no /SLACK-SECRET")]
        result = await run(project, receiver, "alerts", "--test", "--json")
    assert result.returncode == 1
    assert [row["answer"] for row in json.loads(result.stdout)] == ["status 404"] * 2
    assert "SECRET" not in result.stdout + result.stderr
    assert (
        await ledger.value("select count(*) from gateway.audit where action = 'test-alerts'") == 2
    )


async def test_the_list_says_what_stands_and_who_was_told(project: Project, ledger: Reader) -> None:
    project.write("config/routes.yaml", ALERTS + ROUTES)
    async with receiving() as receiver:
        assert "Nothing needs attention." in (await run(project, receiver, "alerts")).stdout
        await put_dead(ledger)
        known = {"ALERT_URL": f"{receiver.url}/ALERT-SECRET", "ALERT_KEY": KEY}
        with project.process("worker", **known, SLACK_URL=f"{receiver.url}/SLACK-SECRET") as worker:
            await until(lambda: len(receiver.requests) == 2)
            await until(
                lambda: ledger.value("select bool_and(status = 'sent') from gateway.alert_messages")
            )
        assert "SECRET" not in worker.output
        listed = await run(project, receiver, "alerts")
        [row] = json.loads((await run(project, receiver, "alerts", "--json")).stdout)
        port = receiver.port
        with project.serve(GATEWAY_ADMIN_TOKEN=TOKEN) as serving:
            await serving.ready()
            url = ("--url", serving.url)
            far = await run(project, receiver, "alerts", "--json", *url, GATEWAY_ADMIN_TOKEN=TOKEN)
            lost = await run(project, receiver, "alerts", "--test", *url, GATEWAY_ADMIN_TOKEN=TOKEN)
    assert listed.stdout.splitlines()[1].split()[2:6] == ["dead", "stripe", "handlers.gone", "3"]
    assert "webhook 0s ago" in listed.stdout or "webhook" in listed.stdout
    assert (row["count"], row["error"], row["rounds"]) == (3, "boom", 1)
    assert [told["status"] for told in row["told"]] == ["sent", "sent"]
    assert json.loads(far.stdout) == [row]
    # `serve` has not been given the references that the worker has.
    assert lost.returncode == 1
    assert "env:ALERT_URL, which is not set" in lost.stderr
    assert str(port) not in listed.stdout


def test_without_alerts_there_is_nobody_to_test(project: Project) -> None:
    result = project.run("alerts", "--test")
    assert result.returncode == 1
    assert result.stderr == ("error: config/routes.yaml: there is no `alerts`, so nobody is told\n")


def test_a_worker_whose_alerts_lead_nowhere_does_not_start(project: Project) -> None:
    project.write("config/routes.yaml", ALERTS + ROUTES)
    result = project.run("worker", ALERT_URL="https://h/", ALERT_KEY="short")
    assert result.returncode == 2
    assert result.stderr.splitlines()[0].startswith(
        "error: config/routes.yaml:3: alerts.webhook.sign: found env:ALERT_KEY, with a key without"
    )
    assert "routes.yaml:4: alerts.slack: found env:SLACK_URL, which is not set" in result.stderr
