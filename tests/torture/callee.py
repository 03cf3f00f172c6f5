"""The world outside: an HTTP server that knows who called it under which key, and how often."""

import asyncio
import contextlib
from typing import Final, NamedTuple

from tests.torture.wire import HOST

ANSWER: Final = b'{"message":"sent"}'
HEAD: Final = (
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    f"content-length: {len(ANSWER)}\r\nconnection: close\r\n\r\n"
)
DROP: Final = "x-drop: 1"
"""In a first request: it counts, and is never answered."""


class Call(NamedTuple):
    """One request that came through."""

    event_id: str
    unknown: str
    """What its handler does where it does not know whether it came through."""
    key: str


class Callee:
    """Takes `POST /<unknown>/<event>/<key>`."""

    def __init__(self, host: str = HOST) -> None:
        self._host = host
        self.calls: list[Call] = []
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://{self._host}:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._take, self._host, 0)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            _, unknown, event_id, key = head.split()[1].split("/")
            is_first = all(call.event_id != event_id for call in self.calls)
            self.calls.append(Call(event_id, unknown, key))
            if not (is_first and DROP in head.lower()):
                writer.write(HEAD.encode() + ANSWER)
                await writer.drain()
        writer.close()
