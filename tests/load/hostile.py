"""Clients that mean harm, or are broken: slow ones, silent ones, and very many."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.load.senders import HOST

HALF_A_HEAD = b"POST /webhooks/stripe HTTP/1.1\r\nhost: gateway\r\ncontent-le"
HALF_A_BODY = b"POST /webhooks/stripe HTTP/1.1\r\nhost: gateway\r\ncontent-length: 900\r\n\r\n{"
QUESTIONS = b"GET /metrics HTTP/1.1\r\nhost: gateway\r\n\r\n" * 1_500
"""More answers than the buffers of both sides hold."""


async def drip(port: int, start: bytes) -> bytes:
    """Sends a byte a second, without end. Returns what was the answer when it is cut off."""
    reader, writer = await asyncio.open_connection(HOST, port)
    with contextlib.closing(writer), contextlib.suppress(ConnectionError):
        writer.write(start)
        answer = asyncio.create_task(reader.read())
        while not answer.done():
            writer.write(b"x")
            await asyncio.wait({answer}, timeout=1)
        return answer.result()
    return b""


@asynccontextmanager
async def silent(port: int, count: int, start: bytes = b"") -> AsyncIterator[list[socket.socket]]:
    """Connections that begin and never go on, and never say that they are gone."""
    with contextlib.ExitStack() as stack:
        yield await asyncio.to_thread(_begin, stack, port, count, start)


def _begin(stack: contextlib.ExitStack, port: int, count: int, start: bytes) -> list[socket.socket]:
    connections = []
    for _ in range(count):
        connection = stack.enter_context(socket.create_connection((HOST, port), timeout=60))
        with contextlib.suppress(ConnectionError):  # sent away already
            connection.sendall(start)
        connections.append(connection)
    return connections


def allow_files(count: int) -> bool:
    """Raises the limit of this process; False where it cannot be raised so far."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    return True
