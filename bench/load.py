"""A load generator of our own, one process: closed loop where wrk is not installed, and open loop.

Open loop: requests have a fixed schedule, and their latency counts from the scheduled time. One
that had to wait because the answers before it were late is late itself (no coordinated omission).
"""

import argparse
import asyncio
import contextlib
import gc
import json
import mmap
import struct
import sys
import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import uvloop

from bench.figures import Sample, latency_figures, percentile

TICK_S = 0.001
"""uvloop's timers know no less; asking for less would make it spin."""
MOST_CONNECTIONS = 256
PATIENCE_S = 10.0


def read_requests(file: Path) -> Iterator[bytes]:
    """The length-prefixed requests of a file, each once."""
    with file.open("rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
        position = 0
        while position < len(data):
            (length,) = struct.unpack_from("<I", data, position)
            yield data[position + 4 : position + 4 + length]
            position += 4 + length


class Client(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self, loop: "Loop") -> None:
        self._loop = loop
        self._transport: asyncio.WriteTransport | None = None
        self._received = b""
        self._since: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is of another family
        self._loop.ready(self)

    def send(self, request: bytes, since: float) -> None:
        self._since = since
        if self._transport is not None:
            self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or self._since is None:
            return
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if len(body) < int(length):
            return
        since, self._since, self._received = self._since, None, b""
        self._loop.answered(since, head.startswith(b"HTTP/1.1 2"), body)
        self._loop.ready(self)

    @property
    def under_way(self) -> bool:
        return self._since is not None

    def connection_lost(self, _: Exception | None) -> None:
        self._loop.lost(self)


class Loop(ABC):
    """Sends requests over connections and notes how long each answer took."""

    def __init__(self, port: int, requests: Iterator[bytes], keep_answers: bool) -> None:
        self._port = port
        self._requests = requests
        self._latencies_ms = array("d")
        self._not_2xx = 0
        self._failed = 0
        self._answers: list[tuple[str, float]] | None = [] if keep_answers else None
        self._began = time.perf_counter()
        self._last = self._began
        self._opening: set[asyncio.Task[object]] = set()

    @abstractmethod
    def ready(self, client: Client) -> None:
        """The connection is free."""

    def answered(self, since: float, ok: bool, body: bytes) -> None:
        self._last = time.perf_counter()
        self._latencies_ms.append((self._last - since) * 1000)
        self._not_2xx += not ok
        if self._answers is not None and ok:
            self._answers.append((json.loads(body)["event_id"], time.time()))

    def lost(self, client: Client | None) -> None:
        """The connection ended, or (None) could not be had."""
        self._failed += client is None or client.under_way

    def open(self) -> None:
        loop = asyncio.get_running_loop()
        connecting = loop.create_connection(lambda: Client(self), "127.0.0.1", self._port)
        task: asyncio.Task[object] = loop.create_task(connecting)
        self._opening.add(task)
        task.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[object]) -> None:
        self._opening.discard(task)
        if task.exception() is not None:
            self.lost(None)

    def figures(self) -> Sample:
        if not self._latencies_ms:
            sys.exit("nothing was answered")
        return {
            "requests": len(self._latencies_ms),
            "seconds": self._last - self._began,
            **latency_figures(self._latencies_ms),
            "not_2xx": self._not_2xx,
            "failed": self._failed,
        }

    def write_answers(self, file: Path) -> None:
        """Event ids with the wall-clock time of their acknowledgement."""
        file.write_text(json.dumps(self._answers))


class ClosedLoop(Loop):
    """Each connection sends its next request as soon as the last one is answered."""

    async def run(self, connections: int, seconds: float | None) -> None:
        self._seconds = seconds
        self._alive = connections
        self._finished = asyncio.get_running_loop().create_future()
        self._began = time.perf_counter()
        for _ in range(connections):
            self.open()
        await self._finished

    def ready(self, client: Client) -> None:
        now = time.perf_counter()
        request = next(self._requests, None) if self._lasts(now) else b""
        if request:
            client.send(request, now)
        elif request is None and self._seconds is not None:
            sys.exit("the requests are used up: sending them again would measure duplicates")
        else:
            client.close()

    def lost(self, client: Client | None) -> None:
        super().lost(client)
        if client is not None and client.under_way and self._lasts(time.perf_counter()):
            self.open()
            return
        self._alive -= 1
        if not self._alive and not self._finished.done():
            self._finished.set_result(None)

    def _lasts(self, now: float) -> bool:
        return self._seconds is None or now - self._began < self._seconds


class OpenLoop(Loop):
    """Sends by the clock, over any free connection, and opens another where none is free."""

    async def run(self, connections: int, rate: float, seconds: float) -> None:
        self._idle: deque[Client] = deque()
        self._due: deque[tuple[float, bytes]] = deque()
        self._late_ms = array("d")
        self._connections = connections
        self._count = int(rate * seconds)
        self._all_answered = asyncio.Event()
        for _ in range(connections):
            self.open()
        await asyncio.gather(*self._opening)
        self._began = time.perf_counter()
        await self._keep_schedule(rate)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_answered.wait(), PATIENCE_S)
        self._failed = self._count - len(self._latencies_ms)

    async def _keep_schedule(self, rate: float) -> None:
        sent = 0
        while sent < self._count:
            now = time.perf_counter()
            while sent < self._count and self._began + sent / rate <= now:
                self._send(self._began + sent / rate)
                sent += 1
            await asyncio.sleep(max(self._began + sent / rate - time.perf_counter(), TICK_S))

    def _send(self, at: float) -> None:
        request = next(self._requests, None)
        if request is None:
            sys.exit("the requests are used up: sending them again would measure duplicates")
        self._due.append((at, request))
        if self._idle:
            self.ready(self._idle.pop())
        elif self._connections < MOST_CONNECTIONS:
            self._connections += 1
            self.open()

    def ready(self, client: Client) -> None:
        if not self._due:
            self._idle.append(client)
            return
        at, request = self._due.popleft()
        self._late_ms.append((time.perf_counter() - at) * 1000)
        client.send(request, at)

    def answered(self, since: float, ok: bool, body: bytes) -> None:
        super().answered(since, ok, body)
        if len(self._latencies_ms) == self._count:
            self._all_answered.set()

    def lost(self, client: Client | None) -> None:
        super().lost(client)
        self._connections -= 1
        with contextlib.suppress(ValueError):
            if client is not None:
                self._idle.remove(client)

    def figures(self) -> Sample:
        """Also how late the requests left: far less than the latencies, or it is ours."""
        late = percentile(sorted(self._late_ms), 99)
        return {**super().figures(), "late_p99_ms": late, "connections": self._connections}


async def generate(options: argparse.Namespace) -> Loop:
    requests = read_requests(options.requests)
    keep = options.answers is not None
    gc.freeze()
    gc.disable()
    if options.rate is None:
        closed = ClosedLoop(options.port, requests, keep)
        await closed.run(options.connections, options.seconds)
        return closed
    loop = OpenLoop(options.port, requests, keep)
    await loop.run(options.connections, options.rate, options.seconds)
    return loop


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("requests", type=Path)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, help="closed loop without it: every request once")
    parser.add_argument("--rate", type=float, help="open loop at so many requests a second")
    parser.add_argument("--answers", type=Path, help="where to note when each event was answered")
    options = parser.parse_args()
    loop = uvloop.run(generate(options))
    if options.answers is not None:
        loop.write_answers(options.answers)
    print(json.dumps(loop.figures()))


if __name__ == "__main__":
    main()
