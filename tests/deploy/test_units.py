"""The systemd units: what systemd's own tools say of them, and a real systemd does with them."""

import re
import subprocess
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from gateway.config.settings import VARIABLES
from tests.deploy.machine import ENVIRON, UNITS, Machine, booted, running
from tests.deploy.reach import Reach
from tests.deploy.roles import run_roles
from tests.support.needs import program
from tests.support.ports import free_port
from tests.support.processes import (
    GITHUB_SECRET,
    ROUTES,
    STRIPE_SECRET,
    Project,
    Running,
    Serving,
    github_request,
    stripe_request,
)
from tests.support.waiting import until

SERVICES: Final = sorted(UNITS.glob("*.service"))
MOST_EXPOSED: Final = 20
"""Of 100: systemd calls what is below "OK". A unit without any sandbox has 96."""


def settings_of(unit: Path) -> list[tuple[str, str]]:
    lines = unit.read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("=") for line in lines if "=" in line and not line.startswith("#")]
    return [(name, value) for name, _, value in pairs]


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_systemd_understands_every_line(unit: Path, tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    for file in SERVICES:
        text = file.read_text(encoding="utf-8").replace("/opt/gateway/bin/gateway", "/bin/true")
        (tmp_path / file.name.replace("@", "@1")).write_text(text, encoding="utf-8")
    named = tmp_path / unit.name.replace("@", "@1")
    command = [analyze, "verify", "--man=no", "--recursive-errors=no", str(named)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_systemd_finds_little_that_is_exposed(unit: Path) -> None:
    analyze = program("systemd-analyze")
    command = [analyze, "security", "--offline=yes", f"--threshold={MOST_EXPOSED}", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_settings_that_units_name_exist_and_none_is_a_secret(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    assert set(re.findall(r"\bGATEWAY_[A-Z_]*[A-Z]\b", text)) <= VARIABLES.keys()
    given = dict(settings_of(unit))
    assert given["EnvironmentFile"].startswith("/etc/gateway/")
    assert not any("URL=" in value or "TOKEN=" in value for _, value in settings_of(unit))


HANDLERS: Final = '''
"""Looks at where it runs."""

import subprocess
from pathlib import Path

from gateway import Context, Event, handler


def tried(attempt) -> str:
    try:
        attempt()
    except OSError as error:
        return type(error).__name__
    return "done"


@handler("*")
async def look(event: Event, ctx: Context) -> None:
    for name, attempt in {
        "secret": lambda: Path("/etc/gateway/secrets/stripe").read_bytes(),
        "spool": lambda: list(Path("/var/lib/gateway").iterdir()),
        "code": lambda: Path("/srv/gateway/handlers/x.py").write_text("x"),
        "system": lambda: Path("/etc/x").write_text("x"),
        "temporary": lambda: Path("/tmp/x").write_text("x"),
        "program": lambda: subprocess.run(["true"], check=True),
    }.items():
        await ctx.db.execute(
            "insert into looks (event_id, at, found) values ($1, $2, $3)",
            event.id, name, tried(attempt),
        )
'''
SEEN: Final = {
    "secret": "PermissionError",
    "spool": "PermissionError",
    "code": "OSError",  # a file system that cannot be written
    "system": "OSError",
    "temporary": "done",
    "program": "done",
}


@pytest.fixture
def settings(reach: Reach, project: Project) -> dict[str, dict[str, str]]:
    """The files in /etc/gateway, and the project in /srv/gateway."""
    secrets = ROUTES.replace("env:STRIPE_WEBHOOK_SECRET", "file:/etc/gateway/secrets/stripe")
    secrets = secrets.replace("env:GITHUB_WEBHOOK_SECRET", "file:/etc/gateway/secrets/github")
    project.write("config/routes.yaml", secrets)
    project.write("handlers/effects.py", HANDLERS)
    project.write(
        "handlers/schema.sql",
        "create table if not exists looks (event_id text, at text, found text);",
    )
    for place in (project.directory, *project.directory.iterdir()):
        place.chmod(0o755)
    shared = {"GATEWAY_REDIS_URL": reach.redis_url, "GATEWAY_LOG_FORMAT": "json"}
    return {
        "migrate": {"GATEWAY_DATABASE_URL": reach.database_url},
        "serve": shared
        | {
            "GATEWAY_DATABASE_URL": reach.as_role("serve", "unused"),
            "GATEWAY_PORT": str(free_port()),
        },
        "worker": shared
        | {
            "GATEWAY_DATABASE_URL": reach.as_role("worker", "unused"),
            "GATEWAY_WORKER_PORT": str(free_port()),
        },
    }


def install(machine: Machine, settings: dict[str, dict[str, str]]) -> None:
    """What an operator does by hand (docs/deploy.md)."""
    for name, values in settings.items():
        text = "".join(f"{key}={value}\n" for key, value in {**ENVIRON, **values}.items())
        machine.write(f"/etc/gateway/{name}.env", text, mode="600")
    machine.write("/etc/gateway/secrets/stripe", f"{STRIPE_SECRET}\n", mode="640")
    machine.write("/etc/gateway/secrets/github", f"{GITHUB_SECRET}\n", mode="640")


async def test_a_real_systemd_runs_them_reloads_them_and_stops_them(
    settings: dict[str, dict[str, str]],
    reach: Reach,
    project: Project,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    serve, worker = "gateway-serve.service", "gateway-worker@1.service"
    with booted(project.directory, tmp_path_factory.mktemp("machine")) as machine:
        await running(machine)
        install(machine, settings)
        machine.does("systemctl", "start", "gateway-migrate")
        run_roles(reach)
        machine.does("systemctl", "start", serve, worker)  # returns when both have said READY=1
        serving = Serving(_of(machine), f"http://127.0.0.1:{settings['serve']['GATEWAY_PORT']}")
        body, headers = stripe_request("evt_1")
        assert (await serving.post(body, headers)).json()["status"] == "accepted"
        assert await until(lambda: _seen(reach.database_url)) == SEEN
        for unit in (serve, worker):
            assert machine.shows(unit, "StatusErrno") == "0"
            assert int(machine.shows(unit, "WatchdogTimestampMonotonic")) > 0

        machine.write("/etc/gateway/secrets/stripe", "whsec_another\n", mode="640")
        machine.does("systemctl", "reload", serve)
        body, headers = stripe_request("evt_2", secret="whsec_another")

        async def is_accepted() -> bool:
            return (await serving.post(body, headers)).status_code == 200

        await until(is_accepted)
        assert machine.shows(serve, "NRestarts") == "0"

        machine.does("systemctl", "stop", serve, worker)
        for unit in (serve, worker):
            assert machine.shows(unit, "Result") == "success", machine.journal()
            assert machine.shows(unit, "ExecMainStatus") == "0"


NOWHERE: Final = {"GATEWAY_DATABASE_URL": "postgresql://gateway@127.0.0.1:1/gateway"}


async def test_a_machine_that_starts_without_postgres_takes_events_and_keeps_them(
    settings: dict[str, dict[str, str]],
    reach: Reach,
    project: Project,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    serve = "gateway-serve.service"
    url = f"http://127.0.0.1:{settings['serve']['GATEWAY_PORT']}"
    with booted(project.directory, tmp_path_factory.mktemp("machine")) as machine:
        await running(machine)
        install(machine, {name: {**values, **NOWHERE} for name, values in settings.items()})
        machine.does("systemctl", "start", serve)
        assert machine.shows("gateway-migrate.service", "ActiveState") != "active"
        body, headers = github_request("a-guid")
        serving = Serving(_of(machine), url)
        answer = await serving.post(body, headers, path="/webhooks/github")
        assert answer.status_code == 200, machine.journal()

        install(machine, settings)
        run_roles(reach)
        machine.does("systemctl", "restart", serve)
        assert await until(lambda: _claimed(reach.database_url)) == ["a-guid"]


async def _claimed(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("select event_id from gateway.processed_events")
        return [row["event_id"] for row in rows]
    finally:
        await connection.close()


def _of(machine: Machine) -> Running:
    return Running(machine.process, machine.log)


async def _seen(url: str) -> dict[str, str]:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("select at, found from looks where event_id = 'evt_1'")
        return {row["at"]: row["found"] for row in rows}
    finally:
        await connection.close()
