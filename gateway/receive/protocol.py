"""uvicorn's HTTP protocol, bounded: heads, idle connections, slow bodies. Answers in one write."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from gateway.receive.admission import Crowd
from gateway.receive.throttle import Throttle

COMPLAINTS_PER_SECOND: Final = 5
VERSIONS: Final = frozenset({"1.1", "1.0"})
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
NOT_HTTP: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
    b'content-length: 23\r\nconnection: close\r\n\r\n{"error":"BAD_REQUEST"}'
)

UNAVAILABLE: Final = 503
TOO_MANY: Final = 429
COME_AGAIN: Final = frozenset({UNAVAILABLE, TOO_MANY})
BUSY: Final = (
    b"content-type: application/json\r\nretry-after: 10\r\n",
    b'{"error":"UNAVAILABLE"}',
)

log = structlog.get_logger("gateway.receive")

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
    if cycle.transport.is_closing():
        return
    # Under overload, a sender that has to connect anew costs more than its next request.
    closing = not cycle.keep_alive or (close and (cycle.more_body or status not in COME_AGAIN))
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
        self._complaints = Throttle(COMPLAINTS_PER_SECOND)

    def complain(self, event: str) -> None:
        """A warning, unless strangers have already caused enough of them this second."""
        if self._complaints.allow():
            log.warning(event, left_out_before=self._complaints.take_left_out())

    def stop(self) -> None:
        """From now on every answer is the last one on its connection."""
        self.stopping = True
        for connection in self.connections:
            if isinstance(connection, HttpToolsProtocol) and connection.cycle is not None:
                connection.cycle.keep_alive = False


class TooManyFields(Exception):
    """A head with more fields than anybody sends."""


class NotOurs(Exception):
    """A version of HTTP that is not spoken here, a target that is none, an upgrade with a body."""


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
        self._is_over = False
        self._is_arriving = False
        self._body_bytes = self._framing_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None
        """What is being answered; `cycle` is what came last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()
        self._state.open.hold(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.open.leave(self)
        self._state.arriving.leave(self)
        self._stop_timer()
        self.resume_writing()
        self._give_up()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _give_up(self) -> None:
        """What is being answered has nobody to hear it: on a closed connection a write raises."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def hang_up(self) -> None:
        """There are too many connections, and this one has been still for longest."""
        self._give_up()
        self.transport.abort()

    def refuse_body(self) -> None:
        """There are too many bodies on their way, and this one for longest."""
        if self.pipeline or self.cycle.response_started:
            self.hang_up()
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
        # What some fronts take for a part of the path, and others do not. And the parser takes what
        # follows an upgrade for another protocol, even where it is a body.
        if (
            b"#" in self.url
            or self.parser.get_http_version() not in VERSIONS
            or (self.parser.should_upgrade() and self.parser.get_method() == b"POST")
        ):
            raise NotOurs
        super().on_headers_complete()
        self._in_head = False
        self._stop_timer()
        self._state.open.move(self)
        if self._state.stopping:
            self.cycle.keep_alive = False
        self.scope["extensions"] = {EXTENSION: partial(_reply, self.cycle)}  # type: ignore[dict-item]

    def on_message_complete(self) -> None:
        self._in_message = False
        if self._is_arriving:
            self._is_arriving = False
            self._state.arriving.leave(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        is_unread = self._in_message and not self._in_head and self._running is self.cycle
        super().on_response_complete()
        if is_unread and not self.transport.is_closing():  # nobody waits for the rest of its body
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        in_body, body_bytes = self._in_message and not self._in_head, self._body_bytes
        if not in_body and self._is_too_much_head(data):
            self._refuse_head()
            return
        super().data_received(data)
        if self._is_over or self.transport.is_closing():
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
            self._give_up()
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

    def _refuse_head(self, answer: bytes = TOO_LARGE) -> None:
        """Whoever came before on this connection gets its answer, and nothing else."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(answer)
        self._end()

    def send_400_response(self, msg: str) -> None:
        """Where the parser gives up: nobody knows any more where the next request begins."""
        self._state.complain("not_http")
        if self._in_message and not self._in_head:
            if not self.pipeline and not self.cycle.response_started:
                self.transport.write(NOT_HTTP)
            self._give_up()
            self.transport.close()
        else:
            self._refuse_head(TOO_LARGE if self._has_too_many_fields else NOT_HTTP)

    def _unsupported_upgrade_warning(self) -> None:
        """The request is answered as any other; what follows it may be in another language."""
        self._end()

    def _end(self) -> None:
        """Takes nothing more, and closes behind the last answer."""
        self._is_over = True
        self._stop_timer()
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # a close would wait for ever for what nobody reads

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(UNREAD_S, self.hang_up)

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
