"""uvicorn's HTTP protocol, bounded: how long a head may be and take. And answers in one write."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

HEAD_BYTES: Final = 64 * 1024
FRAMING_BYTES: Final = 8 * 1024
FRAMING_PER_BYTE: Final = 8
"""A chunk of one byte takes six on the wire."""

HEAD_WITHIN_S: Final = 10.0
TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)

EXTENSION: Final = "gateway.reply"
Reply = Callable[[int, bytes, bytes, bool], None]


def take_reply(scope: Scope) -> Reply:
    """What answers this request: with a status, header lines, a body, and whether to close.

    Taken out: left in the scope it would be a reference cycle, and work for the garbage collector.
    """
    reply: Reply = scope["extensions"].pop(EXTENSION)
    return reply


def _reply(
    cycle: RequestResponseCycle, status: int, lines: bytes, body: bytes, close: bool
) -> None:
    """One write. ASGI's two messages are two segments on the wire, a tenth of a request's time."""
    if cycle.disconnected:
        return
    cycle.response_started = cycle.response_complete = True
    closing = close or not cycle.keep_alive
    defaults = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
    cycle.transport.write(
        b"%b%b%bcontent-length: %d\r\n%b\r\n%b"
        % (
            STATUS_LINE[status],
            defaults,
            lines,
            len(body),
            b"connection: close\r\n" if closing else b"",
            b"" if cycle.scope["method"] == "HEAD" else body,
        )
    )
    cycle.message_event.set()
    if cycle.flow.write_paused:  # hundreds of answers that the sender does not read
        cycle.transport.abort()
    elif closing:
        cycle.transport.close()
    cycle.on_response()


class BoundedHttpProtocol(HttpToolsProtocol):
    """Costs nothing for a request whose head arrives in one piece."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = True
        self._in_message = False
        self._body_bytes = self._framing_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._in_head = self._in_message = True
        self._head_bytes = 0
        self._body_bytes = self._framing_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else a trailer, after a chunked body: of no use to us
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()
        self.scope["extensions"] = {EXTENSION: partial(_reply, self.cycle)}  # type: ignore[dict-item]

    def on_message_complete(self) -> None:
        self._in_message = False
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        in_body, body_bytes = self._in_message and not self._in_head, self._body_bytes
        super().data_received(data)
        if self.transport.is_closing():
            return
        if in_body and self._in_message:
            self._bound_framing(len(data) - (self._body_bytes - body_bytes))
        elif self._in_head or self._is_idle:
            self._bound_head(len(data))

    def _bound_framing(self, size: int) -> None:
        """Chunk sizes, their extensions and trailers, of which a sender could send no end."""
        self._framing_bytes += size
        if self._framing_bytes > FRAMING_BYTES + FRAMING_PER_BYTE * self._body_bytes:
            self.transport.close()

    def _bound_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            if self._in_head:
                self.transport.write(TOO_LARGE)
            self.transport.close()
        elif self._head_timer is None:
            self._start_timer()

    @property
    def _is_idle(self) -> bool:
        """Between two requests: what came now was only blank lines."""
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and not self._in_message

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
