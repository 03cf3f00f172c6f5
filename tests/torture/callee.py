"""The callee: an HTTP server that refuses, fails, hangs and breaks, and keeps a record."""

import asyncio
import contextlib
from collections import Counter
from http import HTTPStatus
from typing import Final, NamedTuple, Self

from tests.torture.wire import HOST

ANSWER: Final = b'{"message":"sent"}'
SENT: Final = 200
HANG: Final = "hang"
BREAK: Final = "break"
DONE: Final = "done"
REPLIES: Final = "x-replies: "
REFUSALS: Final = (400, 401, 403, 404, 405, 406, 411, 413, 414, 415, 422, 425, 429, 431, 451)
"""Answers by which the caller knows that nothing was done."""
FAILURES: Final = (402, 408, 409, 410, 500, 502, 503, 504)
"""Answers after which it may have been done."""
RETRY_AFTER: Final = (429, 503)


class Reply(NamedTuple):
    """What becomes of one request."""

    how: str
    """A status, `hang` (no answer, until the caller gives up) or `break` (a connection reset)."""
    is_done: bool
    """Whether the callee acts on the request, whatever it says."""

    @classmethod
    def parse(cls, text: str) -> Self:
        how, _, done = text.partition(" ")
        return cls(how, done == DONE)

    def __str__(self) -> str:
        return f"{self.how} {DONE}" if self.is_done else self.how

    @property
    def is_refusal(self) -> bool:
        """Whether the caller may take it for proof that nothing was done."""
        return self.how.isdigit() and int(self.how) in REFUSALS


SUCCESS: Final = Reply(str(SENT), True)


class Call(NamedTuple):
    """One request that came through."""

    subject: str
    """What it is about: an event id, or the key of `per`."""
    unknown: str
    """What its handler does about a call of unknown outcome."""
    key: str
    reply: Reply = SUCCESS


class Callee:
    """Takes `POST /<unknown>/<subject>/<key>`. The header `x-replies` says how it replies to the
    first requests about the subject; later ones succeed."""

    def __init__(self, host: str = HOST) -> None:
        self._host = host
        self.calls: list[Call] = []
        self.ordered_calls: list[Call] = []
        """Those that came after it had recovered."""
        self._is_healthy = False
        self._requests: Counter[str] = Counter()
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

    def recover(self) -> None:
        """Every request succeeds from now on."""
        self._is_healthy = True

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            _, unknown, subject, key = head.split()[1].split("/")
            reply = self._reply(head, subject)
            calls = self.ordered_calls if self._is_healthy else self.calls
            calls.append(Call(subject, unknown, key, reply))
            if reply.how == HANG:
                await reader.read()
            elif reply.how == BREAK:
                writer.transport.abort()
            else:
                writer.write(_answer(int(reply.how)))
                await writer.drain()
        writer.close()

    def _reply(self, head: str, subject: str) -> Reply:
        number = self._requests[subject]
        self._requests[subject] += 1
        line = next((x for x in head.split("\r\n") if x.lower().startswith(REPLIES)), REPLIES)
        planned = [Reply.parse(text) for text in line[len(REPLIES) :].split(",") if text]
        return planned[number] if number < len(planned) and not self._is_healthy else SUCCESS


def _answer(status: int) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {len(ANSWER)}",
        "connection: close",
        *(["retry-after: 1"] if status in RETRY_AFTER else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + ANSWER
