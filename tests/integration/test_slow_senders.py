"""Senders that take their time, on the protocol of `serve` with a shorter patience."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from gateway.receive import protocol
from gateway.receive.listening import Server, listen
from gateway.receive.protocol import BoundedHttpProtocol, State, take_reply
from tests.fuzz.targets.heads import Wire
from tests.support.waiting import until

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
PATIENCE_S = 20
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _say_ok(scope: Scope, _: Receive, __: Send) -> None:
    """Without a look at the body."""
    take_reply(scope)(200, b"", b"ok", False)


@asynccontextmanager
async def connected() -> AsyncIterator[Connection]:
    """To a server of its own."""
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(_say_ok, http=BoundedHttpProtocol, lifespan="off", log_config=None)
    config.load()
    state = State(max_connections=100, max_requests=100, max_bytes=1024 * 1024)
    server = Server(config, state=state, linger_s=0)
    server.lifespan = config.lifespan_class(config)
    address = listener.getsockname()
    await server.startup([listener])
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.close()
        await server.shutdown()


async def is_cut_off(connection: Connection, *, drip: bytes) -> bool:
    """Whether the server closes without a word while this comes without end."""
    reader, writer = connection
    ended = asyncio.create_task(reader.read())
    with contextlib.suppress(ConnectionError):
        while not ended.done():
            writer.write(drip)
            await writer.drain()
            await asyncio.wait({ended}, timeout=0.02)
        return await asyncio.wait_for(ended, PATIENCE_S) == b""
    with contextlib.suppress(ConnectionError):
        await ended
    return True


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.3)


NAME = b"GET / HTTP/1.1\r\nx"


@pytest.mark.parametrize(
    ("is_first", "start", "drip"),
    [
        (True, b"", b""),
        (True, b"", b"\r\n"),
        (True, b"GET /", b"y"),
        (True, NAME, b"y"),
        (False, b"", b"\r\n"),
        (False, b"GET /", b"y"),
        (False, NAME, b"y"),
    ],
)
async def test_a_head_that_does_not_come_is_cut_off(
    is_first: bool, start: bytes, drip: bytes
) -> None:
    async with connected() as connection:
        reader, writer = connection
        if not is_first:
            writer.write(REQUEST)
            await reader.readuntil(b"ok")
        writer.write(start)
        assert await is_cut_off(connection, drip=drip)


async def test_a_body_that_nobody_waits_for_does_not_keep_its_connection() -> None:
    async with connected() as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
        await asyncio.wait_for(reader.readuntil(b"ok"), PATIENCE_S)
        writer.write(b"x")  # whose timer was that of an idle connection
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""


async def test_what_is_pipelined_behind_a_whole_body_is_answered() -> None:
    async with connected() as (reader, writer):
        body = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"
        writer.write(body + body + body[:-1])
        for _ in range(2):
            await asyncio.wait_for(reader.readuntil(b"ok"), PATIENCE_S)
        assert (await asyncio.wait_for(reader.readuntil(b"ok"), PATIENCE_S)).endswith(b"ok")


async def test_of_thousands_in_one_piece_one_request_waits() -> None:
    """And each of them is answered in the end."""
    waiting: list[int] = []
    answered = 0

    async def count(scope: Scope, _: Receive, __: Send) -> None:
        nonlocal answered
        answered += 1
        waiting.extend(len(connection.pipeline) for connection in state.connections)  # type: ignore[union-attr]
        take_reply(scope)(200, b"", b"ok", False)

    config = uvicorn.Config(count, http=BoundedHttpProtocol, lifespan="off", log_config=None)
    config.load()
    state = State(max_connections=10, max_requests=10, max_bytes=1024 * 1024)
    connection = BoundedHttpProtocol(config=config, server_state=state, app_state={})
    wire = Wire()
    connection.connection_made(wire)
    connection.data_received(REQUEST * 5_000)
    await until(lambda: answered == 5_000)
    connection.connection_lost(None)
    assert max(waiting) == 1
    assert wire.written.count(b"HTTP/1.1 200") == 5_000
