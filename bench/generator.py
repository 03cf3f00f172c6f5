"""Puts load on a port from a process of its own: wrk where it is installed, else `bench.load`."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from http.client import HTTPResponse
from pathlib import Path
from typing import Self

from bench.environment import ROOT
from bench.figures import Sample
from bench.processes import BenchFailed
from bench.requests import stripe_requests

SCRIPT = Path(__file__).with_name("requests.lua")
OVERTIME_S = 60
HOST = "127.0.0.1"
WARM_ROUNDS, WARM_CONNECTIONS = 10, 16


class Loading:
    """A generator at work."""

    def __init__(self, command: Sequence[str], requests: Path) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "BENCH_REQUESTS": str(requests)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def figures(self, timeout_s: float) -> Sample:
        """Waits for its end."""
        try:
            output, errors = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchFailed(f"the load generator did not end in {timeout_s:g} s") from None
        if self._process.returncode != 0:
            raise BenchFailed(f"the load generator failed: {errors.strip() or output.strip()}")
        sample: Sample = json.loads(output.splitlines()[-1])
        return {"per_second": sample["requests"] / sample["seconds"], **sample}


def warm_up(port: int, rounds: int = WARM_ROUNDS) -> int:
    """The first requests make connections, prepare statements and fill caches: they do not count.

    Returns how many there were.
    """
    requests = stripe_requests(rounds * WARM_CONNECTIONS)
    with contextlib.ExitStack() as open_sockets:
        senders = [
            open_sockets.enter_context(socket.create_connection((HOST, port)))
            for _ in range(WARM_CONNECTIONS)
        ]
        for _ in range(rounds):
            for sender in senders:
                sender.sendall(next(requests))
            for sender in senders:
                with HTTPResponse(sender) as answer:
                    answer.begin()
                    answer.read()
    return rounds * WARM_CONNECTIONS


def start_closed_loop(port: int, requests: Path, connections: int, seconds: float) -> Loading:
    """As many as the other side takes, for so many seconds."""
    if shutil.which("wrk") is None:
        options = ["--connections", str(connections), "--seconds", str(seconds)]
        return Loading(_own(port, requests, options), requests)
    url = f"http://{HOST}:{port}"
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(SCRIPT), url]
    return Loading(command, requests)


def closed_loop(
    ports: Sequence[int], files: Sequence[Path], connections: int, seconds: float
) -> Sample:
    """On one port, or split over several, each with requests of its own."""
    share = connections // len(ports)
    with contextlib.ExitStack() as running:
        loads = [
            running.enter_context(start_closed_loop(port, file, share, seconds))
            for port, file in zip(ports, files, strict=False)
        ]
        return _added([load.figures(seconds + OVERTIME_S) for load in loads])


def send_all(port: int, requests: Path, connections: int, timeout_s: float = 600) -> Sample:
    """Every request of the file once, as fast as they are taken."""
    options = ["--connections", str(connections)]
    with Loading(_own(port, requests, options), requests) as load:
        return load.figures(timeout_s)


def open_loop(
    port: int, requests: Path, *, rate: float, seconds: float, answers: Path | None = None
) -> Sample:
    """At a fixed rate, whatever the other side does."""
    with start_open_loop(port, requests, rate=rate, seconds=seconds, answers=answers) as load:
        return load.figures(seconds + OVERTIME_S)


def start_open_loop(
    port: int, requests: Path, *, rate: float, seconds: float, answers: Path | None = None
) -> Loading:
    """The same, beside something else."""
    options = ["--rate", str(rate), "--seconds", str(seconds)]
    options += [] if answers is None else ["--answers", str(answers)]
    return Loading(_own(port, requests, options), requests)


def _own(port: int, requests: Path, options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "bench.load", str(port), str(requests), *options]


def _added(samples: Sequence[Sample]) -> Sample:
    """Rates and counts add up; of the latencies the worse one counts."""
    if len(samples) == 1:
        return samples[0]
    adding = ("per_second", "requests", "not_2xx", "failed")
    return {
        name: (sum if name in adding else max)(sample[name] for sample in samples)
        for name in samples[0]
    }
