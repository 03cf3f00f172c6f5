"""A machine with a real systemd: a container of systemd-nspawn with nothing but this one's /usr."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from tests.deploy.files import DEPLOY, PROJECT
from tests.support.needs import lacks, program
from tests.support.waiting import until

SECONDS: Final = 60
UNITS: Final = DEPLOY / "systemd"
INSTALLED: Final = {
    UNITS / "gateway.sysusers": "/etc/sysusers.d/gateway.conf",
    UNITS / "gateway.tmpfiles": "/etc/tmpfiles.d/gateway.conf",
    **{unit: f"/etc/systemd/system/{unit.name}" for unit in UNITS.glob("*.service")},
}


@dataclass(frozen=True, slots=True)
class Machine:
    """It runs; commands are given to it from outside."""

    process: subprocess.Popen[bytes]
    log: Path

    def run(self, *command: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """As root of the machine."""
        return subprocess.run(
            ["nsenter", "--all", "--target", str(self._first()), *command],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            input=given,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def does(self, *command: str, given: str | None = None) -> str:
        """What it prints, if it succeeds."""
        done = self.run(*command, given=given)
        assert done.returncode == 0, (command, done.stdout, done.stderr, self.journal())
        return done.stdout.strip()

    def write(self, path: str, text: str, *, mode: str) -> None:
        """A file of root's, in the group of its directory."""
        self.does("sh", "-c", f"umask 077; cat > {path}; chmod {mode} {path}", given=text)

    def shows(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.does("systemctl", "show", unit, f"--property={name}", "--value")

    def journal(self) -> str:
        """What was logged, by all units."""
        return self.run("journalctl", "--no-pager", "--output=cat").stdout[-6000:]

    def _first(self) -> int:
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return int(children[-1])


@contextmanager
def booted(project: Path, directory: Path) -> Iterator[Machine]:
    """With the files of deploy/systemd installed, and a user's project in /srv/gateway."""
    nspawn = program("systemd-nspawn")
    _check(nspawn)
    log = directory / "machine.log"
    options = [o for mount in _mounts(project, directory) for o in ("--bind-ro", mount)]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*_container(nspawn), "--boot", *options, "--", "--unit=sysinit.target"],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Machine(process, log)
    finally:
        process.terminate()  # it shuts the machine down
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def running(machine: Machine) -> None:
    """Waits until it has started, with its accounts made."""

    def is_up() -> bool:
        assert machine.process.poll() is None, machine.log.read_text(errors="replace")
        try:
            return machine.run("systemctl", "is-active", "sysinit.target").stdout == "active\n"
        except (FileNotFoundError, IndexError):  # its first process is not there yet
            return False

    await until(is_up)


ENVIRON: Final = {"PYTHONPATH": "/opt/source", "LD_LIBRARY_PATH": "/opt/python/lib"}
"""So that processes find this interpreter and this source: where they are, a unit sees nothing
(ProtectHome=)."""


def _mounts(project: Path, directory: Path) -> list[str]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    home = directory / "environment"
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "bin" / "python").symlink_to(f"/opt/python/bin/{version}")
    (home / "pyvenv.cfg").write_text("home = /opt/python/bin\n", encoding="utf-8")
    script = home / "bin" / "gateway"
    script.write_text("#!/opt/gateway/bin/python\nfrom gateway.cli import main\nmain()\n")
    for place in (home / "bin", home / "lib", home, script):
        place.chmod(0o755)
    return [
        f"{home}:/opt/gateway",
        f"{PROJECT / '.venv' / 'lib'}:/opt/gateway/lib",
        f"{sys.base_prefix}:/opt/python",
        f"{PROJECT / 'gateway'}:/opt/source/gateway",
        f"{project}:/srv/gateway",
        *(f"{source}:{target}" for source, target in INSTALLED.items()),
    ]


def _container(nspawn: str) -> list[str]:
    name = f"gateway-{uuid4().hex[:8]}"
    return [
        *(nspawn, "--quiet", "--directory=/", "--volatile=yes", f"--machine={name}"),
        *("--register=no", "--keep-unit", "--console=pipe", "--link-journal=no"),
    ]


def _check(nspawn: str) -> None:
    if os.geteuid() != 0:
        lacks("root for systemd-nspawn")
    done = subprocess.run([*_container(nspawn), "true"], capture_output=True, text=True)
    if done.returncode:
        lacks(f"a machine that allows systemd-nspawn: {done.stderr.strip()}")
