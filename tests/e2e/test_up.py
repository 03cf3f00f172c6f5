"""`gateway up`: one command from nothing to a processed event, and what it does in bad weather."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config.development import read_up
from gateway.dev.embedded import Postgres, Redis
from tests.support.ports import free_port
from tests.support.processes import Project, Running
from tests.support.waiting import PATIENCE_S, until

DATA = ".gateway"


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Project]:
    """A project on a machine where nothing is set: no URLs, no secrets."""
    project = Project(tmp_path, "", "")
    for name in ("GATEWAY_DATABASE_URL", "GATEWAY_REDIS_URL"):
        del project.environ[name]
    for name in ("STRIPE_WEBHOOK_SECRET", "GITHUB_WEBHOOK_SECRET"):
        del project.environ[name]
    project.environ["GATEWAY_PORT"] = str(free_port())
    yield project
    Postgres(tmp_path / DATA / "postgres").remove()
    Redis(tmp_path / DATA / "redis").remove()


async def sent(project: Project, type: str = "payment_intent.succeeded") -> str:
    """Sends one, waits until it is done, returns its id."""
    result = project.run("send", "stripe", type)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith('200 {"status":"accepted"')
    event_id = str(json.loads(result.stdout[4:].split("  ")[0])["event_id"])

    def done() -> bool:
        [event] = json.loads(project.run("show", event_id, "--json").stdout)
        return all(d["status"] == "done" for d in event["deliveries"])

    await until(done)
    return event_id


async def test_one_command_and_one_event_and_one_row(newcomer: Project) -> None:
    with newcomer.process("up") as up:
        await up.says("Ready.")
        assert "is not set: a development secret is used" in up.output
        assert "PostgreSQL" in up.output
        port = newcomer.environ["GATEWAY_PORT"]
        assert f"  console  http://127.0.0.1:{port}/console/\n" in up.output
        event_id = await sent(newcomer)
        [listed] = json.loads(newcomer.run("events", "--json").stdout)
        assert (listed["event_id"], listed["deliveries"]) == (event_id, {"done": 1})
        secrets = (newcomer.directory / DATA / "secrets.json").read_text()
        for secret in json.loads(secrets).values():
            assert secret not in up.output
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(PATIENCE_S) == 0
    assert read_up(newcomer.directory / DATA) is None
    with newcomer.process("up") as up:
        await up.says("Ready.")
        assert [e["event_id"] for e in json.loads(newcomer.run("events", "--json").stdout)] == [
            event_id
        ]


async def test_the_start_says_what_the_console_wants_and_whether_there_is_one(
    newcomer: Project,
) -> None:
    with newcomer.process("up", GATEWAY_READ_TOKEN="r" * 32) as up:
        await up.says("Ready.")
        port = newcomer.environ["GATEWAY_PORT"]
        wanted = f"  console  http://127.0.0.1:{port}/console/ (asks for GATEWAY_READ_TOKEN)\n"
        assert wanted in up.output
    with newcomer.process("up", GATEWAY_HOST="0.0.0.0") as up:  # noqa: S104 (what is tested)
        await up.says("Ready.")
        assert "  notice   no console: it needs GATEWAY_ADMIN_TOKEN on 0.0.0.0\n" in up.output


async def test_a_queue_is_open_at_once_with_a_token_that_was_made_up(newcomer: Project) -> None:
    newcomer.write(
        "config/routes.yaml",
        """
        schema: [handlers/schema.sql]
        routes:
          orders: {provider: publish, tokens: [env:ORDERS_TOKEN], handlers: [handlers.effects]}
        """,
    )
    newcomer.write("order.json", "{}")
    command = ("publish", "orders", "--payload", "order.json", "--key", "order:1")
    with newcomer.process("up") as up:
        await up.says("publish orders --payload -")
        assert "/v1/queues/orders/jobs" in up.output
        first, again = newcomer.run(*command), newcomer.run(*command)
        assert (first.returncode, first.stdout) == (0, "order:1: new\n")
        assert (again.returncode, again.stdout) == (0, "order:1: published before\n")
        await until(lambda: '"done": 1' in newcomer.run("events", "--json").stdout)
        [token] = json.loads((newcomer.directory / DATA / "secrets.json").read_text()).values()
        assert token.startswith("gwq_")
        assert token not in up.output


async def test_a_killed_up_takes_its_children_along_and_the_next_one_starts(
    newcomer: Project,
) -> None:
    with newcomer.process("up") as up:
        await up.says("Ready.")
        event_id = await sent(newcomer)
        up.kill()
    port = int(newcomer.environ["GATEWAY_PORT"])
    await until(lambda: _is_free(port))
    with newcomer.process("up") as up:
        await up.says("Ready.")
        assert [e["event_id"] for e in json.loads(newcomer.run("events", "--json").stdout)] == [
            event_id
        ]
        await sent(newcomer, "invoice.paid")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


async def test_children_that_end_are_started_again(newcomer: Project) -> None:
    with newcomer.process("up") as up:
        await up.says("Ready.")
        for child in children(up):
            os.kill(child, signal.SIGKILL)
        await until(lambda: up.output.count("process_ended") == 2)
        await until(lambda: newcomer.run("send", "stripe", "invoice.paid").returncode == 0)
        await until(lambda: '"done"' in newcomer.run("events", "--json").stdout)


async def test_a_hangup_goes_to_serve_which_reads_its_secrets_anew(newcomer: Project) -> None:
    newcomer.write(
        "config/routes.yaml",
        """
        routes:
          stripe: {provider: stripe, secrets: ["file:secret"]}
        """,
    )
    newcomer.write("secret", "whsec_old_0123456789")
    with newcomer.process("up") as up:
        await up.says("Ready.")
        newcomer.write("secret", "whsec_new_0123456789")
        assert newcomer.run("send", "stripe", "invoice.paid").stdout.startswith("403")
        up.process.send_signal(signal.SIGHUP)
        await up.says("secrets_reloaded")
        assert newcomer.run("send", "stripe", "invoice.paid").stdout.startswith("200")
        assert "process_ended" not in up.output
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(PATIENCE_S) == 0


async def test_an_engine_that_ends_is_started_again(newcomer: Project) -> None:
    with newcomer.process("up") as up:
        await up.says("Ready.")
        home = Postgres(newcomer.directory / DATA / "postgres").home
        pid = int((home / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        await up.says("engine_ended")
        await until(lambda: newcomer.run("send", "stripe", "invoice.paid").returncode == 0)
        await until(lambda: '"done"' in newcomer.run("events", "--json").stdout)


def children(up: Running) -> list[int]:
    """The pids of `serve` and `worker`."""
    listed = Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children").read_text()
    return [pid for pid in map(int, listed.split()) if "gateway" in _command(pid)]


def _command(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return " ".join(words) if words[-2] == "--with-parent" else ""


async def test_a_second_up_on_the_same_directory_is_refused_in_one_line(
    newcomer: Project,
) -> None:
    with newcomer.process("up") as up:
        await up.says("Ready.")
        result = newcomer.run("up", GATEWAY_PORT="0")
        assert result.returncode == 1
        assert result.stderr.startswith("error: a `gateway up` already runs on .gateway")
        assert result.stderr.count("\n") == 1


async def test_a_port_in_use_is_one_clear_line_before_anything_is_started(
    newcomer: Project,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(newcomer.environ["GATEWAY_PORT"])))
        taken.listen()
        result = newcomer.run("up")
    assert result.returncode == 1
    assert "cannot listen on 127.0.0.1:" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (newcomer.directory / DATA / "postgres").exists()


async def test_a_wrong_configuration_is_exit_2_before_anything_is_started(
    newcomer: Project,
) -> None:
    newcomer.write("config/routes.yaml", "routes:\n  stripe:\n    provider: strip\n")
    result = newcomer.run("up")
    assert result.returncode == 2
    assert "config/routes.yaml:3: routes.stripe.provider: found 'strip'" in result.stderr
    assert not (newcomer.directory / DATA / "postgres").exists()


async def test_a_broken_handler_is_exit_2_and_leaves_nothing_running(newcomer: Project) -> None:
    newcomer.write("handlers/effects.py", "import no_such_module\n")
    result = newcomer.run("up")
    assert result.returncode == 2
    assert "no_such_module" in result.stderr
    assert "Traceback" not in result.stderr
    assert not Postgres(newcomer.directory / DATA / "postgres").running()
