"""The image: what its file says, and what it does in a sandbox as the engine would make it."""

import fnmatch
import re
import socket
import subprocess
from pathlib import Path

import pytest

from gateway.cli import FAILED, TERMINATED
from tests.deploy.dockerfile import (
    COMMAND,
    DIRECTORY,
    USER_ID,
    arguments,
    last_stage,
    read_dockerfile,
)
from tests.deploy.files import DEPLOY, PROJECT
from tests.deploy.flow import make_sandbox, take_effect
from tests.deploy.reach import Reach
from tests.deploy.sandbox import SECONDS, STATE, Sandbox
from tests.support.databases import run_sql
from tests.support.needs import lacks

# What the file says


def test_the_linter_finds_nothing() -> None:
    hadolint = PROJECT / ".venv" / "bin" / "hadolint"
    done = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_it_runs_as_nobody_in_particular_and_by_number() -> None:
    assert int(USER_ID) >= 10_000
    assert any(f"--uid {USER_ID}" in command for command in arguments(last_stage(), "RUN"))


def test_it_serves_by_default_and_hears_sigterm_itself() -> None:
    assert COMMAND == ["gateway", "serve"]
    assert arguments(last_stage(), "STOPSIGNAL") == ["SIGTERM"]
    assert arguments(last_stage(), "ENTRYPOINT") == []


def test_it_is_built_in_stages_from_the_pins_and_from_wheels_alone() -> None:
    assert len(arguments(read_dockerfile(), "FROM")) == 2
    installs = [
        command
        for run in arguments(read_dockerfile(), "RUN")
        for command in run.split("&&")
        if " install " in command and "pip" in command
    ]
    assert len(installs) == 2
    for install in installs:
        assert "--only-binary :all: --constraint deploy/constraints.txt" in install


def test_it_has_no_pip() -> None:
    assert any("pip uninstall --yes pip" in run for run in arguments(last_stage(), "RUN"))
    assert any("venv --without-pip" in run for run in arguments(read_dockerfile(), "RUN"))


def test_the_data_directory_is_the_users() -> None:
    assert any(
        f"--owner=gateway --group=gateway --mode=0700 {STATE}" in run
        for run in arguments(last_stage(), "RUN")
    )


def test_it_has_a_title_and_a_licence() -> None:
    [labels] = arguments(last_stage(), "LABEL")
    names = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", labels))
    assert names == {"title", "description", "licenses"}


def _sources() -> set[str]:
    copies = [c.split() for c in arguments(read_dockerfile(), "COPY") if "--from" not in c]
    return {source for copy in copies for source in copy[:-1]}


def test_what_it_copies_is_there() -> None:
    assert {"config", "handlers", "gateway"} <= _sources()
    assert [source for source in _sources() if not (PROJECT / source).exists()] == []


def test_the_engine_is_given_what_is_copied_and_nothing_else() -> None:
    lines = (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*"
    assert {p.removeprefix("!") for p in patterns if p.startswith("!")} == _sources()
    assert any(fnmatch.fnmatch("handlers/.env", p.replace("**", "*")) for p in patterns[1:])


# What it does


@pytest.fixture
def sandbox(reach: Reach, tmp_path: Path) -> Sandbox:
    """The container, with its environment, and nothing to write on but its volume."""
    made = make_sandbox(reach, tmp_path)
    probe = made.run("true")
    if probe.returncode:
        lacks(f"a machine that allows bubblewrap: {probe.stderr.strip()}")
    return made


async def test_an_event_takes_effect_where_nothing_but_the_volume_can_be_written(
    sandbox: Sandbox, reach: Reach
) -> None:
    """`make image` does the same with the image as it is built."""
    await run_sql(reach.database_url, (PROJECT / "handlers" / "schema.sql").read_text())
    await take_effect(sandbox, reach)


@pytest.mark.parametrize(
    ("command", "code"),
    # A worker has its own handler by then, and gives up together with the ledger.
    [("serve", TERMINATED), ("migrate", TERMINATED), ("worker", FAILED)],
)
def test_who_is_told_to_stop_while_it_starts_stops(
    sandbox: Sandbox, command: str, code: int
) -> None:
    """The kernel keeps signals without a handler from the first process of a container."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(SECONDS)
        url = f"postgresql://gateway@127.0.0.1:{mute.getsockname()[1]}/gateway"
        with sandbox.started("gateway", command, GATEWAY_DATABASE_URL=url) as starting:
            connection, _ = mute.accept()  # and it waits for an answer
            with connection:
                assert starting.stop() == code, starting.output


def test_the_sandbox_of_these_tests_holds(sandbox: Sandbox) -> None:
    """Else the test before would prove nothing."""
    for place in (DIRECTORY, "/", "/usr", "/var/lib"):
        done = sandbox.run("touch", f"{place}/x")
        assert "Read-only file system" in done.stderr
    assert sandbox.run("touch", f"{STATE}/x").returncode == 0
    assert sandbox.run("id", "--user").stdout.strip() == USER_ID
