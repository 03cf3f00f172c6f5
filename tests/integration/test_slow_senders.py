"""Senders that take their time, on the protocol of `serve` with a shorter patience."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http import protocol
from gateway.http.listening import Server, listen
from gateway.http.protocol import BoundedHttpProtocol, State
from gateway.receive.answers import Answer
from tests.fuzz.targets.heads import Wire
from tests.support.waiting import until

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
OK = Answer(200, b"ok", ())
PATIENCE_S = 20
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _say_ok(scope: Scope, _: Receive, send: Send) -> None:
    """Without a look at the body."""
    await OK.send(scope, send)


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


def _state() -> State:
    return State(max_connections=10, max_requests=10, max_bytes=1024 * 1024)


def _connect(app: ASGIApp, state: State) -> tuple[BoundedHttpProtocol, Wire]:
    """Return a connection without a socket."""
    config = uvicorn.Config(app, http=BoundedHttpProtocol, lifespan="off", log_config=None)
    config.load()
    connection = BoundedHttpProtocol(config=config, server_state=state, app_state={})
    wire = Wire()
    connection.connection_made(wire)
    return connection, wire


async def test_of_thousands_in_one_piece_one_request_waits() -> None:
    """And each of them is answered in the end."""
    waiting: list[int] = []
    answered = 0

    async def count(scope: Scope, _: Receive, send: Send) -> None:
        nonlocal answered
        answered += 1
        waiting.extend(len(connection.pipeline) for connection in state.connections)  # type: ignore[union-attr]
        await OK.send(scope, send)

    state = _state()
    connection, wire = _connect(count, state)
    connection.data_received(REQUEST * 5_000)
    await until(lambda: answered == 5_000)
    connection.connection_lost(None)
    assert max(waiting) == 1
    assert wire.written.count(b"HTTP/1.1 200") == 5_000


async def test_waiting_requests_are_freed_when_their_connection_is_lost() -> None:
    """At once: the garbage collector may not run for a long time."""
    leave = asyncio.Event()
    running = asyncio.Event()

    async def wait(_: Scope, __: Receive, ___: Send) -> None:
        running.set()
        await leave.wait()

    state = _state()
    connection, _ = _connect(wait, state)
    connection.data_received(REQUEST * 1_000)
    await running.wait()
    assert len(state.pipelining) == 1
    [(cycle, _)] = connection.pipeline
    waiting = weakref.ref(cycle)
    del cycle, _
    gc.disable()
    try:
        connection.connection_lost(None)
        assert waiting() is None
    finally:
        gc.enable()
    assert len(state.pipelining) == 0
    assert (len(connection.pipeline), len(connection._received)) == (0, 0)
    leave.set()
    await until(lambda: not state.tasks)


async def test_an_evicted_pipeline_still_gets_the_answer_that_is_on_its_way() -> None:
    leave = asyncio.Event()
    running = asyncio.Event()

    async def wait(scope: Scope, _: Receive, send: Send) -> None:
        running.set()
        await leave.wait()
        await OK.send(scope, send)

    state = _state()
    connection, wire = _connect(wait, state)
    connection.data_received(REQUEST * 3)
    await running.wait()
    assert state.admission.requests == 1
    state.pipelining.evict()
    assert state.admission.requests == 0
    leave.set()
    await until(lambda: wire.closed)
    connection.connection_lost(None)
    assert wire.written.count(b"HTTP/1.1 200") == 1
    assert b"connection: close" in wire.written


@pytest.mark.parametrize(("method", "kept"), [(b"POST", 1000), (b"GET", 0), (b"HEAD", 0)])
async def test_a_body_is_kept_only_if_the_method_has_one_and_until_the_answer(
    method: bytes, kept: int
) -> None:
    """Otherwise a GET that waits for Postgres would hold bytes that count in no limit."""
    may_answer = asyncio.Event()

    async def answer_later(scope: Scope, _: Receive, send: Send) -> None:
        await may_answer.wait()
        await OK.send(scope, send)

    state = _state()
    connection, wire = _connect(answer_later, state)
    head = method + b" / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
    connection.data_received(head + b"x" * 1000)
    assert len(connection.cycle.body) == kept
    may_answer.set()
    await until(lambda: b"200 OK" in wire.written)
    assert not connection.cycle.body
    connection.connection_lost(None)


async def test_unfinished_heads_are_bounded_over_all_connections() -> None:
    """Each one may have 64 KiB, and there may be thousands of connections."""
    state = _state()
    connections = [_connect(_say_ok, state) for _ in range(4)]
    for connection, _ in connections:
        connection.data_received(b"GET / HTTP/1.1\r\nx: " + b"y" * 50_000)
    assert [wire.closed for _, wire in connections] == [True, True, False, False]
    last, wire = connections[-1]
    last.data_received(b"\r\n\r\n")
    assert len(state.heads) == 1
    await until(lambda: wire.written.endswith(b"ok"))
    for connection, _ in connections:
        connection.connection_lost(None)
    assert len(state.heads) == 0


async def test_trailers_are_bounded_also_after_a_large_body() -> None:
    """The parser keeps a trailer in memory until its line ends."""
    connection, wire = _connect(_never_answer, _state())
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    connection.data_received(head)
    connection.data_received(b"%x\r\n" % 400_000 + b"x" * 400_000 + b"\r\n")
    connection.data_received(b"0\r\ntrailer: ")
    for _ in range(3):
        assert not wire.closed
        connection.data_received(b"x" * 4_000)
    assert wire.closed
    connection.connection_lost(None)


async def test_chunks_of_one_byte_are_not_cut_off() -> None:
    connection, wire = _connect(_never_answer, _state())
    connection.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(5_000):
        connection.data_received(b"1\r\n")
        connection.data_received(b"x\r\n")
    assert not wire.closed
    connection.connection_lost(None)


async def _never_answer(_: Scope, receive: Receive, __: Send) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
