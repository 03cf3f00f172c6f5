"""Processes of the gateway, forked from one that has imported it: real ones, and soon there.

One of them can be told to die at a named step, as by `kill -9`.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["gateway.cli"])


class Death(NamedTuple):
    """Where a process is to end."""

    step: str
    nth: int = 1
    error: str | None = None
    """What happens there each time instead: something unforeseen, in these words."""


class Forked:
    """A `gateway` command in a process of its own, with the manners of subprocess.Popen."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        directory: Path,
        environ: Mapping[str, str],
        output: Path,
        errors: Path,
        death: Death | None = None,
    ) -> None:
        self._process = FORK.Process(
            target=_run,
            args=(tuple(arguments), directory, dict(environ), output, errors, death),
            daemon=True,
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("gateway", timeout or 0)
        return self._process.exitcode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended, which `poll` learns a bit later
                os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    arguments: tuple[str, ...],
    directory: Path,
    environ: dict[str, str],
    output: Path,
    errors: Path,
    death: Death | None,
) -> None:
    from gateway.base.failpoints import Step, arm
    from gateway.cli import main

    for stream, file in ((sys.stdout, output), (sys.stderr, errors)):
        sink = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(sink, stream.fileno())
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    sys.path.insert(0, str(directory))
    sys.argv = ["gateway", *arguments]
    if death is not None:
        left = [death.nth]

        def die(step: Step) -> None:
            if step == death.step:
                if death.error is not None:
                    raise RuntimeError(death.error)
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)

        arm(die)
    main()
