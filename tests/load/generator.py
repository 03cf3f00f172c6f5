"""A process that puts load on a port: all that is taken, or a fixed rate whatever happens.

The fixed rate opens a connection for each request that finds none free, as many senders would. A
request that finds the most connections in use is left out, and counted.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import cast

import uvloop

from bench.figures import Sample, percentile
from bench.load import ClosedLoop
from bench.requests import stripe_requests
from tests.load.senders import HOST

ENDLESS = 1 << 40
TICK_S = 0.001
PATIENCE_S = 15.0
COLLECT_EVERY = 50_000


class Connection(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self, load: "FixedRate", request: bytes) -> None:
        self._load = load
        self._request = request
        self._since = time.perf_counter()
        self._received = b""
        self._is_waiting = True
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is of another family
        self._transport.write(self._request)

    def send(self, request: bytes) -> None:
        self._since, self._is_waiting = time.perf_counter(), True
        if self._transport is not None:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        if len(body) < int(lower.partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            return
        self._received, self._is_waiting = b"", False
        took_s = time.perf_counter() - self._since
        is_open = b"connection: close" not in lower
        self._load.answered(self, head[9:12], body, took_s, is_open)

    def connection_lost(self, _: Exception | None) -> None:
        self._load.lost(self, self._is_waiting)


class FixedRate:
    """Sends by the clock."""

    def __init__(self, port: int, requests: Iterator[bytes], most_connections: int) -> None:
        self._port = port
        self._requests = requests
        self._most = most_connections
        self._connections = 0
        self._idle: deque[Connection] = deque()
        self._opening: set[asyncio.Task[object]] = set()
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._left_out = self._sent = self._failed = 0
        self._took_ms = {b"200": array("d"), b"503": array("d")}
        self._others = 0
        self.accepted: list[tuple[str, float]] = []
        """Event ids with the time of their acknowledgement."""

    async def run(self, rate: float, seconds: float) -> None:
        began = time.perf_counter()
        due = 0
        while (elapsed_s := time.perf_counter() - began) < seconds:
            while due < elapsed_s * rate:
                due += 1
                self._send()
            await asyncio.sleep(TICK_S)
        self._seconds = time.perf_counter() - began
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), PATIENCE_S)

    def _send(self) -> None:
        if not self._idle and self._connections >= self._most:
            self._left_out += 1
            return
        request = next(self._requests)
        self._sent += 1
        self._under_way += 1
        self._quiet.clear()
        if self._idle:
            self._idle.pop().send(request)
        else:
            self._open(request)

    def _open(self, request: bytes) -> None:
        self._connections += 1
        loop = asyncio.get_running_loop()
        task: asyncio.Task[object] = loop.create_task(
            loop.create_connection(lambda: Connection(self, request), HOST, self._port)
        )
        self._opening.add(task)
        task.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[object]) -> None:
        self._opening.discard(task)
        if task.exception() is not None:
            self.lost(None, was_waiting=True)

    def answered(
        self, connection: Connection, status: bytes, body: bytes, took_s: float, is_open: bool
    ) -> None:
        self._finish_one()
        if status in self._took_ms:
            self._took_ms[status].append(took_s * 1000)
        else:
            self._others += 1
        if status == b"200":
            self.accepted.append((json.loads(body)["event_id"], time.time()))
        if is_open:
            self._idle.append(connection)

    def lost(self, connection: Connection | None, was_waiting: bool) -> None:
        self._connections -= 1
        if was_waiting:
            self._failed += 1
            self._finish_one()
        if connection is not None and connection in self._idle:
            self._idle.remove(connection)

    def _finish_one(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._quiet.set()

    def figures(self) -> Sample:
        return {
            "seconds": self._seconds,
            "sent": self._sent,
            "left_out": self._left_out,
            "accepted": len(self._took_ms[b"200"]),
            "unavailable": len(self._took_ms[b"503"]),
            "others": self._others,
            "failed": self._failed + self._under_way,
            **_latencies("accepted", self._took_ms[b"200"]),
            **_latencies("unavailable", self._took_ms[b"503"]),
        }


def _latencies(name: str, took_ms: "array[float]") -> Sample:
    ordered = sorted(took_ms) or [0.0]
    return {f"{name}_p{n}_ms": percentile(ordered, n) for n in (50, 99)}


async def generate(options: argparse.Namespace) -> Sample:
    requests = stripe_requests(ENDLESS)
    if options.bad:
        requests = repeat(next(requests).replace(b",v1=", b",v1=0"))
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)
    if options.rate is None:
        closed = ClosedLoop(options.port, requests, keep_answers=True)
        await closed.run(options.connections, options.seconds)
        closed.write_answers(options.answers)
        return closed.figures()
    fixed = FixedRate(options.port, requests, options.connections)
    await fixed.run(options.rate, options.seconds)
    options.answers.write_text(json.dumps(fixed.accepted))
    return fixed.figures()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.load.generator", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--connections", type=int, default=64, help="at most")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=float, help="requests a second; without it all it takes")
    parser.add_argument("--bad", action="store_true", help="sign wrongly")
    parser.add_argument("--answers", type=Path, required=True, help="where to note accepted ids")
    options = parser.parse_args()
    sys.stdout.write(json.dumps(uvloop.run(generate(options))))


if __name__ == "__main__":
    main()
