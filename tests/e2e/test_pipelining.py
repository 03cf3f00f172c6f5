"""Clients that try to fill the memory of a process with many requests, or large ones."""

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.support.ports import free_port
from tests.support.processes import Project, Serving, stripe_request

ANSWER = b'{"status":"alive"}'
CONNECTIONS = 3
BURST_BYTES = 60_000
MOST_GROWTH = 50 * 1024 * 1024


class Flood(NamedTuple):
    """The request that a client repeats, and how many bursts of it each connection sends."""

    request: bytes
    bursts: int

    @property
    def per_burst(self) -> int:
        return BURST_BYTES // len(self.request)


# Code that queued every pipelined request grew by 230 MiB with the first, 110 MiB with the second.
MANY_FIELDS = Flood(b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 40 + b"\r\n", 50)
TINY = Flood(b"GET /healthz HTTP/1.1\r\n\r\n", 6)


def peak_bytes(pid: int) -> int:
    """Return the highest resident memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


class Client:
    """A connection that is kept full of requests, and reads all answers."""

    def __init__(
        self, flood: Flood, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._flood = flood
        self._reader = reader
        self._writer = writer
        self._answered = asyncio.Event()
        self.answers = 0

    async def talk(self) -> int:
        """Send every burst, and return the number of answers."""
        sending = asyncio.create_task(self._send())
        tail = b""
        while self.answers < self._flood.bursts * self._flood.per_burst:
            data = tail + await self._reader.read(1024 * 1024)
            if data == tail:
                break
            self.answers += data.count(ANSWER)
            self._answered.set()
            tail = data[-len(ANSWER) + 1 :]
        sending.cancel()
        await asyncio.wait({sending})
        self._writer.transport.abort()
        return self.answers

    async def _send(self) -> None:
        for burst in range(1, self._flood.bursts + 1):
            self._writer.write(self._flood.request * self._flood.per_burst)
            await self._writer.drain()
            # Let the server read this burst before the next one. If a read has parts of two, it may
            # end inside a head, which the code that this must fail on refused as too large.
            for _ in range(2):
                if self.answers < burst * self._flood.per_burst:
                    self._answered.clear()
                    await self._answered.wait()


async def pipeline(port: int, flood: Flood) -> list[int]:
    """Send requests on a few connections at once. Return how many answers each of them got."""
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
    return await asyncio.gather(*(Client(flood, *pair).talk() for pair in pairs))


async def _send_without_end(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(MANY_FIELDS.request * MANY_FIELDS.per_burst)
        await writer.drain()


@pytest.mark.parametrize("flood", [MANY_FIELDS, TINY], ids=["many fields", "tiny"])
async def test_pipelined_requests_do_not_fill_the_memory_of_serve(
    project: Project, flood: Flood
) -> None:
    with project.serve() as serving:
        await serving.ready()
        port, pid = urlsplit(serving.url).port, serving.running.process.pid
        assert port is not None
        before = peak_bytes(pid)
        pipelining = asyncio.create_task(pipeline(port, flood))
        answer = await serving.post(*stripe_request(f"evt_{uuid4().hex}"))
        assert answer.json()["status"] == "accepted"
        answers = await pipelining
        assert peak_bytes(pid) - before < MOST_GROWTH
        assert answers == [flood.bursts * flood.per_burst] * CONNECTIONS


async def test_pipelined_requests_do_not_fill_the_memory_of_a_worker(project: Project) -> None:
    port = free_port()
    with project.process("worker", GATEWAY_WORKER_PORT=str(port)) as worker:
        await Serving(worker, f"http://127.0.0.1:{port}").ready()
        before = peak_bytes(worker.process.pid)
        answers = await pipeline(port, MANY_FIELDS)
        assert peak_bytes(worker.process.pid) - before < MOST_GROWTH
        assert answers == [MANY_FIELDS.bursts * MANY_FIELDS.per_burst] * CONNECTIONS


async def test_answers_that_are_not_read_end_the_connection(project: Project) -> None:
    """However little is left in the buffers, and however many requests are behind."""
    with project.serve() as serving:
        await serving.ready()
        pid = serving.running.process.pid
        before = peak_bytes(pid)
        _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(serving.url).port)
        with pytest.raises(ConnectionError):
            await _send_without_end(writer)
        assert peak_bytes(pid) - before < MOST_GROWTH


async def test_unfinished_heads_do_not_fill_the_memory(project: Project) -> None:
    """Each head is within its own bound, and together they are not."""
    head = b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 60_000
    with project.serve(GATEWAY_MAX_BUFFERED="64MiB") as serving, ExitStack() as stack:
        await serving.ready()
        address = "127.0.0.1", urlsplit(serving.url).port
        before = peak_bytes(serving.running.process.pid)
        for _ in range(2_000):
            connection = stack.enter_context(socket.create_connection(address))
            connection.sendall(head)
        answer = await serving.post(*stripe_request(f"evt_{uuid4().hex}"))
        assert answer.json()["status"] == "accepted"
        assert peak_bytes(serving.running.process.pid) - before < MOST_GROWTH


LARGE_HEAD = b"".join(b"x-%d: %b\r\n" % (n, b"y" * 290) for n in range(190))
LARGE_BODY = b"content-length: 60000\r\n"


@pytest.mark.parametrize(
    ("fields", "body"), [(LARGE_HEAD, b""), (LARGE_BODY, b"y" * 60_000)], ids=["head", "body"]
)
async def test_answered_requests_do_not_fill_the_memory(
    project: Project, fields: bytes, body: bytes
) -> None:
    """Connections that wait for a next request, each of which has sent a large one."""
    with project.serve() as serving, ExitStack() as stack:
        await serving.ready()
        address = "127.0.0.1", urlsplit(serving.url).port
        before = peak_bytes(serving.running.process.pid)
        for _ in range(2_000):
            connection = stack.enter_context(socket.create_connection(address))
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + fields + b"\r\n" + body)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
        answer = await serving.post(*stripe_request(f"evt_{uuid4().hex}"))
        assert answer.json()["status"] == "accepted"
        assert peak_bytes(serving.running.process.pid) - before < MOST_GROWTH
