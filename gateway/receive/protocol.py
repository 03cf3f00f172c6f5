"""uvicorn's HTTP protocol, bounded: heads, idle connections, slow bodies. Answers in one write."""

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
from uvicorn.server import ServerState

from gateway.receive.admission import Crowd

HEAD_BYTES: Final = 64 * 1024
HEAD_END: Final = b"\r\n\r\n"
HEAD_FIELDS: Final = 200
FRAMING_BYTES: Final = 8 * 1024
FRAMING_PER_BYTE: Final = 8
"""A chunk of one byte takes six on the wire."""

HEAD_WITHIN_S: Final = 10.0
UNREAD_S: Final = 10.0
"""How long a long answer may wait for a client that does not read it."""

TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)

UNAVAILABLE: Final = 503
BUSY: Final = (
    b"content-type: application/json\r\nretry-after: 10\r\n",
    b'{"error":"UNAVAILABLE"}',
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
    # Under overload, a sender that has to connect anew costs more than its next request.
    closing = not cycle.keep_alive or (close and (cycle.more_body or status != UNAVAILABLE))
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


class State(ServerState):
    """What the connections of a server share."""

    def __init__(self, *, max_connections: int, max_requests: int, max_bytes: int) -> None:
        super().__init__()
        self.open: Final[Crowd[BoundedHttpProtocol]] = Crowd(
            "connection",
            max_members=max_connections,
            max_bytes=0,
            send_away=BoundedHttpProtocol.hang_up,
        )
        # Half of what a process holds is kept for requests that have arrived.
        self.arriving: Final[Crowd[BoundedHttpProtocol]] = Crowd(
            "slow body",
            max_members=max(max_requests // 2, 1),
            max_bytes=max_bytes // 2,
            send_away=BoundedHttpProtocol.refuse_body,
        )
        self.stopping = False

    def stop(self) -> None:
        """From now on every answer is the last one on its connection."""
        self.stopping = True
        for connection in self.connections:
            if isinstance(connection, HttpToolsProtocol) and connection.cycle is not None:
                connection.cycle.keep_alive = False


class TooManyFields(Exception):
    """A head with more fields than anybody sends."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """Costs next to nothing for a request that arrives in one piece."""

    def __init__(self, *, server_state: State, **more: Any) -> None:
        super().__init__(server_state=server_state, **more)
        self._state = server_state
        self._head_bytes = 0
        self._head_tail = b""
        self._has_too_many_fields = False
        self._in_head = True
        self._in_message = False
        self._is_arriving = False
        self._body_bytes = self._framing_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()
        self._state.open.hold(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.open.leave(self)
        self._state.arriving.leave(self)
        self._stop_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def hang_up(self) -> None:
        """There are too many connections, and this one has been still for longest."""
        self.transport.abort()

    def refuse_body(self) -> None:
        """There are too many bodies on their way, and this one for longest."""
        if self.pipeline or self.cycle.response_started:
            self.transport.abort()
        else:
            _reply(self.cycle, UNAVAILABLE, *BUSY, True)

    def on_message_begin(self) -> None:
        self._in_head = self._in_message = True
        self._head_bytes = 0
        self._body_bytes = self._framing_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # a trailer, after a chunked body: of no use to us
            return
        if len(self.headers) >= HEAD_FIELDS:
            self._has_too_many_fields = True
            raise TooManyFields
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        self._state.open.move(self)
        super().on_headers_complete()
        if self._state.stopping:
            self.cycle.keep_alive = False
        self.scope["extensions"] = {EXTENSION: partial(_reply, self.cycle)}  # type: ignore[dict-item]

    def on_message_complete(self) -> None:
        self._in_message = False
        if self._is_arriving:
            self._is_arriving = False
            self._state.arriving.leave(self)
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        in_body, body_bytes = self._in_message and not self._in_head, self._body_bytes
        if not in_body and self._is_too_much_head(data):
            self._refuse_head()
            return
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_message and not self._in_head:
            self._is_arriving = True
            self._state.arriving.hold(self, self._body_bytes)
            if in_body:
                self._bound_framing(len(data) - (self._body_bytes - body_bytes))
        elif self._in_head or self._is_idle:
            self._bound_head(data)

    def _bound_framing(self, size: int) -> None:
        """Chunk sizes, their extensions and trailers, of which a sender could send no end."""
        self._framing_bytes += size
        if self._framing_bytes > FRAMING_BYTES + FRAMING_PER_BYTE * self._body_bytes:
            self.transport.close()

    def _is_too_much_head(self, data: bytes) -> bool:
        """Whether a head goes on past its bound in this piece."""
        is_begun = self._in_message and self._in_head
        left = HEAD_BYTES - self._head_bytes if is_begun else HEAD_BYTES
        if len(data) <= left or (is_begun and HEAD_END in self._head_tail + data[:3]):
            return False
        return data.find(HEAD_END, 0, left) < 0

    def _bound_head(self, data: bytes) -> None:
        self._head_bytes += len(data)
        self._head_tail = data[-3:]
        if self._head_bytes > HEAD_BYTES:
            self._refuse_head()
        elif self._head_timer is None:
            self._start_timer()

    def _refuse_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(TOO_LARGE)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self._has_too_many_fields:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # a close would wait for ever for what nobody reads

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    @property
    def _is_idle(self) -> bool:
        """Between two requests: what came now was only blank lines."""
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and not self._in_message

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
