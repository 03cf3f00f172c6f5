"""A container without Docker: bubblewrap, with what the Dockerfile and compose.yaml say."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.deploy.dockerfile import DIRECTORY, ENVIRONMENT, GROUP_ID, USER_ID
from tests.deploy.files import PROJECT
from tests.support.needs import program
from tests.support.processes import Running

SECONDS: Final = 60
MEMORY: Final = ("--tmpfs", "/tmp")  # noqa: S108 - the sandbox's
STATE: Final = ENVIRONMENT["GATEWAY_DATA_DIR"]


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A root that cannot be written, /tmp in memory, one directory that stays, nobody's rights."""

    root: Sequence[str]
    """What stands in it, as options of bubblewrap."""
    environ: Mapping[str, str]
    state: Path
    logs: Path

    def run(self, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        return subprocess.run(
            self._inside(command),
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    @contextmanager
    def started(self, *command: str, **environ: str) -> Iterator["Contained"]:
        """One that stays."""
        log = self.logs / f"{command[-1]}.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                self._inside(command),
                env={**self.environ, **environ},
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        contained = Contained(process, log)
        try:
            yield contained
        finally:
            contained.end()

    def _inside(self, command: Sequence[str]) -> list[str]:
        return [
            program("bwrap"),
            *self.root,
            *("--proc", "/proc", "--dev", "/dev"),
            *("--bind", str(self.state), STATE, "--remount-ro", "/"),
            *("--unshare-user", "--uid", USER_ID, "--gid", GROUP_ID, "--cap-drop", "ALL"),
            *("--unshare-pid", "--as-pid-1", "--die-with-parent", "--new-session"),
            *("--chdir", DIRECTORY, "--", *command),
        ]


class Contained(Running):
    """A process in a sandbox: signals go to it, and not to what holds the sandbox."""

    def end(self) -> None:
        if self.process.poll() is None:
            self.stop()

    def stop(self) -> int:
        """As an engine does: SIGTERM to the process with the number 1. Returns how it ended."""
        os.kill(_first_of(self.process.pid), signal.SIGTERM)
        return self.process.wait(SECONDS)


def _first_of(holder: int) -> int:
    """The process that was asked for, which has the number 1 inside: below the holder."""
    children = Path(f"/proc/{holder}/task/{holder}/children").read_text(encoding="ascii")
    return int(children.split()[0])


def of_this_environment(environ: Mapping[str, str], **places: Path) -> Sandbox:
    """As the image, but with the virtual environment of the tests in place of its own."""
    environment = PROJECT / ".venv"
    root = [*MEMORY, "--dir", "/var/lib"]  # first: the project itself may stand in /tmp
    for directory in ("/usr", "/etc"):
        root += ["--ro-bind", directory, directory]
    for name in ("bin", "lib", "lib64", "sbin"):
        root += ["--symlink", f"usr/{name}", f"/{name}"]
    for source, target in {
        environment: environment,  # where its scripts look for their interpreter, and it
        Path(sys.base_prefix): Path(sys.base_prefix),
        PROJECT / "gateway": PROJECT / "gateway",
        PROJECT / "config": Path(DIRECTORY, "config"),
        PROJECT / "handlers": Path(DIRECTORY, "handlers"),
    }.items():
        root += ["--ro-bind", str(source), str(target)]
    path = ENVIRONMENT["PATH"].replace("/opt/gateway/bin", str(environment / "bin"))
    given = {
        **ENVIRONMENT,
        **environ,
        "PATH": path.replace("$PATH", "/usr/local/bin:/usr/bin:/bin"),
    }
    return Sandbox(root, given, **places)
