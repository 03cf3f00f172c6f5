"""The first five minutes of a newcomer: a project, everything started, an event through."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.release.empty import CONSTRAINTS, Empty, make_empty
from tests.release.programs import StepFailed, run

READY_S: Final = 90.0
DONE_S: Final = 30.0
EVENT: Final = ("stripe", "payment_intent.succeeded")


def try_wheel(wheel: Path, interpreter: Path, directory: Path) -> Iterator[str]:
    """Installs it with the pins and without, each in an environment of its own, away from here,
    and sends an event through. Raises StepFailed."""
    for name, constraints in (("pinned", CONSTRAINTS), ("unpinned", None)):
        empty = make_empty(directory / name, interpreter)
        empty.install(f"{wheel}[embedded]", constraints=constraints)
        project = directory / f"{name}-project"
        project.mkdir()
        yield f"installed {name}: {try_out(empty, project)}: first event done"


def try_out(empty: Empty, directory: Path) -> str:
    """What `gateway --version` says of an installation that works. Raises StepFailed."""
    environ = empty.environ(GATEWAY_PORT=str(_free_port()), GATEWAY_ENGINES="wheels")
    ask = [str(empty.python), "-c", "import gateway; print(gateway.__file__)"]
    where = run(ask, directory=directory, environ=environ)
    if not Path(where.strip()).is_relative_to(empty.packages):
        raise StepFailed(f"gateway was imported from {where.strip()}, not from {empty.packages}")
    told = run([empty.gateway, "--version"], environ=environ).strip()
    run([empty.gateway, "--help"], environ=environ)
    run([empty.gateway, "init", "shop"], directory=directory, environ=environ)
    shop = directory / "shop"
    run([empty.gateway, "check"], directory=shop, environ=environ)
    log = directory / "up.log"
    with log.open("wb") as output:
        up = subprocess.Popen(
            [empty.gateway, "up"], cwd=shop, env=environ, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _wait(lambda: "Ready." in log.read_text(), up, log, READY_S)
        sent = run([empty.gateway, "send", *EVENT], directory=shop, environ=environ)
        if '"status":"accepted"' not in sent:
            raise StepFailed(f"the first event was not accepted: {sent}")
        _wait(lambda: _is_done(empty, shop, environ), up, log, DONE_S)
        up.send_signal(signal.SIGTERM)
        if up.wait(60) != 0:
            raise StepFailed(f"`gateway up` ended with {up.returncode}:\n{log.read_text()}")
    finally:
        up.kill()
        up.wait()
    return told


def _is_done(empty: Empty, shop: Path, environ: dict[str, str]) -> bool:
    listed = run([empty.gateway, "events", "--json"], directory=shop, environ=environ)
    [event] = json.loads(listed)
    return set(event["deliveries"]) == {"done"}


def _wait(
    holds: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path, within_s: float
) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if process.poll() is not None or time.monotonic() > deadline:
            raise StepFailed(
                f"`gateway up` did not get there in {within_s:g} s:\n{log.read_text()}"
            )
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
