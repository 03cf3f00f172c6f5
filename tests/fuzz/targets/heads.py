"""Requests as bytes, in any pieces, through the protocol of `serve` without a socket."""

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import uvicorn
from starlette.types import Receive, Scope, Send

from gateway.http.protocol import BoundedHttpProtocol, State
from gateway.receive.answers import Answer
from tests.fuzz.target import Check, Finding, Stage, Target, Watch, looping
from tests.support.shapes import SHAPES

BODY_BYTES = 64 * 1024
TURNS = 6
"""Of the event loop: enough for the last request of a connection to be answered."""


class Seen(NamedTuple):
    """A request as the application gets it."""

    method: str
    path: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Wire(asyncio.Transport):
    """A connection to nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed:
            raise RuntimeError("written after the end, which uvloop refuses")
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Talk:
    """One connection, and what came of it."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.wire = Wire()
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            http=BoundedHttpProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
        )
        config.load()
        state = State(max_connections=10, max_requests=10, max_bytes=1024 * 1024)
        self._protocol = BoundedHttpProtocol(config=config, server_state=state, app_state={})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if not message["more_body"] or len(body) > BODY_BYTES:
                break
        self.seen.append(Seen(scope["method"], scope["raw_path"], tuple(scope["headers"]), body))
        await Answer(200, b"ok", ()).send(scope, send)

    async def hold(self, pieces: Sequence[bytes]) -> None:
        """Says it all, hears the answers and hangs up."""
        self._protocol.connection_made(self.wire)
        for piece in pieces:
            if not self.wire.closed:
                self._protocol.data_received(piece)
        while self._protocol.flow.is_held and not self.wire.closed:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._protocol.connection_lost(None)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._protocol._unset_keepalive_if_required()  # a timer, which would outlive the loop


def _pieces(data: bytes) -> list[bytes]:
    rng = random.Random(len(data))  # noqa: S311 (no secret)
    cuts = sorted(rng.randint(0, len(data)) for _ in range(rng.randint(0, 8)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


async def _try(data: bytes) -> None:
    whole, torn = Talk(), Talk()
    await whole.hold([data] if data else [])
    await torn.hold(_pieces(data))
    # What is too long is noticed sooner or later, depending on how it comes.
    if len(data) < 4096 and whole.seen != torn.seen:
        raise Finding(f"read differently in pieces: {whole.seen} and {torn.seen}")
    for talk in (whole, torn):
        if talk.wire.written.count(b"HTTP/1.1 200") > len(talk.seen):
            raise Finding("more answers than requests")


@contextmanager
def _open(_: Stage) -> Iterator[Check]:
    watch = Watch()
    logging.getLogger("uvicorn.error").addHandler(watch)
    with looping() as loop:

        def check(data: bytes) -> None:
            loop.run(_try(data))
            watch.check()

        yield check
    logging.getLogger("uvicorn.error").removeHandler(watch)


def _seeds() -> list[bytes]:
    two = SHAPES["length: none"].data * 2
    return [*(shape.data for shape in SHAPES.values()), two, two + SHAPES["chunk: 0x"].data]


TARGET = Target("heads", _seeds, _open)
