"""Clients that pipeline far more requests than are answered, against real processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.support.ports import free_port
from tests.support.processes import Project, Serving, stripe_request

REQUEST = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
BURST = REQUEST * (60_000 // len(REQUEST))
CONNECTIONS = 3
BYTES_EACH = 3 * 1024 * 1024
ANSWERS_EACH = 5_000
MOST_GROWTH = 50 * 1024 * 1024


def peak_bytes(pid: int) -> int:
    """Return the highest resident memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


async def _send(writer: asyncio.StreamWriter) -> None:
    for _ in range(BYTES_EACH // len(BURST)):
        writer.write(BURST)
        await writer.drain()


async def _send_without_end(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(BURST)
        await writer.drain()


async def _read_answers(reader: asyncio.StreamReader) -> None:
    for _ in range(ANSWERS_EACH):
        await reader.readuntil(b'{"status":"alive"}')


@asynccontextmanager
async def pipelining(port: int) -> AsyncIterator[None]:
    """Keep a few connections full of requests, of which each gets thousands of answers."""
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
    sending = [asyncio.create_task(_send(writer)) for _, writer in pairs]
    try:
        await asyncio.gather(*(_read_answers(reader) for reader, _ in pairs))
        yield
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        for _, writer in pairs:
            writer.transport.abort()


async def test_pipelined_requests_do_not_fill_the_memory_of_serve(project: Project) -> None:
    with project.serve() as serving:
        await serving.ready()
        port, pid = urlsplit(serving.url).port, serving.running.process.pid
        assert port is not None
        before = peak_bytes(pid)
        async with pipelining(port):
            answer = await serving.post(*stripe_request(f"evt_{uuid4().hex}"))
            assert answer.json()["status"] == "accepted"
            assert peak_bytes(pid) - before < MOST_GROWTH
        await serving.ready()
        assert peak_bytes(pid) - before < MOST_GROWTH


async def test_pipelined_requests_do_not_fill_the_memory_of_a_worker(project: Project) -> None:
    port = free_port()
    with project.process("worker", GATEWAY_WORKER_PORT=str(port)) as worker:
        await Serving(worker, f"http://127.0.0.1:{port}").ready()
        before = peak_bytes(worker.process.pid)
        async with pipelining(port):
            assert peak_bytes(worker.process.pid) - before < MOST_GROWTH


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
