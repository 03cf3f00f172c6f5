"""Processes of the bench: started with a log of their own, known to be ready, always ended."""

import json
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from bench.figures import Sample
from bench.machine import rss_bytes

START_S = 60
END_S = 40
POLL_S = 0.02


class BenchFailed(Exception):
    """A measurement that would mean nothing."""


class Process:
    """A process that stays until it is ended."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        directory: Path,
        log: Path,
        ready_line: str,
        port: int = 0,
    ) -> None:
        self.name = name
        self.port = port
        self._log = log
        self._ready_line = ready_line
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                command, cwd=directory, env=environ, stdout=sink, stderr=sink
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def rss_bytes(self) -> int:
        return rss_bytes(self.pid)

    def wait_ready(self) -> Self:
        """Returns when it says that it works."""
        wait_until(lambda: self.ready or not self.alive, START_S, f"{self.name} to start")
        if not self.alive:
            raise BenchFailed(f"{self.name} did not start:\n{self.log[-2000:]}")
        return self

    @property
    def ready(self) -> bool:
        if self._ready_line:
            return self._ready_line in self.log
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def figures(self, timeout_s: float) -> Sample:
        """Of one that prints them and ends."""
        wait_until(lambda: not self.alive, timeout_s, f"{self.name} to end")
        if self._process.returncode != 0:
            raise BenchFailed(f"{self.name} failed:\n{self.log[-2000:]}")
        sample: Sample = json.loads(self.log.splitlines()[-1])
        return sample

    def ask_to_end(self) -> None:
        if self.alive:
            self._process.terminate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ask_to_end()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def wait_until(
    condition: Callable[[], bool], timeout_s: float, what: str, every_s: float = POLL_S
) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchFailed(f"waited {timeout_s:g} s for {what}")
        time.sleep(every_s)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
