"""uvicorn's HTTP protocol with bounds on heads, idle connections, slow bodies and pipelining.

Each response is sent in one write.
"""

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from starlette.types import Message
from uvicorn.protocols.http.flow_control import CLOSE_HEADER, HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from gateway.http.admission import Admission, ConnectionLimit, unreserved
from gateway.http.limits import Throttle

if TYPE_CHECKING:
    from uvicorn._types import HTTPScope

COMPLAINTS_PER_SECOND: Final = 5
VERSIONS: Final = frozenset({"1.1", "1.0"})
BODILESS: Final = frozenset({"GET", "HEAD"})
HEAD_BYTES: Final = 64 * 1024
HEAD_END: Final = b"\r\n\r\n"
HEAD_FIELDS: Final = 200
FRAMING_BYTES: Final = 8 * 1024
FRAMING_PER_BYTE: Final = 8
"""A chunk of one byte takes six bytes on the wire."""

SLICES_PER_TURN: Final = 64
"""How many slices of received bytes are parsed before other connections are served.

A body full of blank lines consists of very many slices.
"""

HEAD_WITHIN_S: Final = 10.0
UNREAD_S: Final = 10.0
"""How long a long response may wait for a client that does not read it."""

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
    b"content-type: application/json\r\nretry-after: 10\r\ncontent-length: 23\r\n",
    b'{"error":"UNAVAILABLE"}',
)

SHORT_BYTES: Final = 16 * 1024
"""A longer response is worth two writes, and may wait for a client that reads slowly."""

ANSWERED: Final = cast("HTTPScope", MappingProxyType({}))
"""Replaces the scope of an answered request on a connection that waits for the next one."""

log = structlog.get_logger("gateway.receive")

SHED: Final[Message] = {"type": "http.disconnect", "shed": True}
"""What an application receives after its request was answered 503 while the body was arriving."""


class Exchange:
    """The `receive` and `send` of one request, with a short response sent in one write.

    ASGI's two messages would be two segments on the wire, which takes a tenth of a request's time.
    So the head waits for the first message of the body.
    """

    __slots__ = ("_head", "_is_shed", "cycle")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self.cycle = cycle
        self._head: Any = None
        self._is_shed = False

    async def receive(self) -> Any:
        message = await self.cycle.receive()
        return SHED if self._is_shed else message

    async def send(self, message: Any) -> None:
        if self._is_shed:
            return
        if message["type"] == "http.response.start":
            self._head = message
            return
        head, self._head = self._head, None
        if head is None:
            await self.cycle.send(message)
        elif not self._is_written_at_once(head, message):
            await self.cycle.send(head)
            await self.cycle.send(message)

    def _is_written_at_once(self, head: Any, message: Any) -> bool:
        """Write a response that is short and complete. Return whether it is."""
        body, headers = message.get("body", b""), head["headers"]
        if message.get("more_body") or len(body) > SHORT_BYTES:
            return False
        lines = [b"%b: %b\r\n" % header for header in headers if header != CLOSE_HEADER]
        text = b"".join(lines)
        if b"content-length: %d\r\n" % len(body) not in lines or text.count(b"\n") != len(lines):
            return False  # uvicorn sends it otherwise, or raises the error
        self._write(head["status"], text, body, closes=len(lines) < len(headers))
        return True

    def shed(self) -> None:
        """Answer 503 before the body is complete."""
        self._is_shed = True
        self._write(UNAVAILABLE, *BUSY, closes=True)

    def _write(self, status: int, lines: bytes, body: bytes, *, closes: bool) -> None:
        cycle = self.cycle
        if cycle.disconnected:
            return
        cycle.response_started = cycle.response_complete = True
        if cycle.transport.is_closing():
            return
        # Under overload, a new connection of the sender costs more than its next request.
        closing = not cycle.keep_alive or (closes and (cycle.more_body or status not in COME_AGAIN))
        cycle.transport.write(
            b"%b%b%b%b\r\n%b"
            % (
                STATUS_LINE[status],
                b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers]),
                lines,
                b"connection: close\r\n" if closing else b"",
                b"" if cycle.scope["method"] == "HEAD" else body,
            )
        )
        cycle.message_event.set()
        if cycle.flow.write_paused:  # the sender has not read hundreds of responses
            cycle.transport.abort()
        elif closing:
            cycle.transport.close()
        cycle.on_response()


def _do_nothing() -> None:
    pass


class State(ServerState):
    """The state that all connections of a server share."""

    def __init__(
        self,
        *,
        max_connections: int,
        max_requests: int,
        max_bytes: int,
        reserved_paths: frozenset[bytes] = frozenset(),
    ) -> None:
        """Initialize the limits.

        `reserved_paths` are the URLs of senders that never retry: half of the capacity is reserved
        for them (see `Admission`).
        """
        super().__init__()
        self._reserved_paths = reserved_paths
        self.open: Final[ConnectionLimit[BoundedHttpProtocol]] = ConnectionLimit(
            "connection",
            max_members=max_connections,
            max_bytes=0,
            send_away=BoundedHttpProtocol.hang_up,
        )
        # Slow bodies use at most half of the capacity of their kind of sender, and the reserve is
        # no smaller. So bodies that have arrived always find capacity, and neither kind of sender
        # evicts the other.
        shared = unreserved(max_requests, max_bytes, reserves=bool(reserved_paths))
        self._arriving: Final = _arriving(*shared)
        self._arriving_reserved: Final = _arriving(max_requests // 2, max_bytes // 2)
        # Each of 10,000 connections may have sent 64 KiB of a head that does not end.
        self.heads: Final[ConnectionLimit[BoundedHttpProtocol]] = ConnectionLimit(
            "unfinished head",
            max_members=max_connections,
            max_bytes=max_bytes // 8,
            send_away=BoundedHttpProtocol.hang_up,
        )
        # Separate from slow bodies, so that clients that pipeline evict only each other.
        self.pipelining: Final[ConnectionLimit[BoundedHttpProtocol]] = ConnectionLimit(
            "pipelined request",
            max_members=max(max_requests // 2, 1),
            max_bytes=max_bytes // 4,
            send_away=BoundedHttpProtocol.drop_pipeline,
        )
        self.admission: Final = Admission(
            max_requests=max_requests,
            max_bytes=max_bytes,
            reserves=bool(reserved_paths),
            pipelining=self.pipelining,
        )
        self.stopping = False
        self._complaints = Throttle(COMPLAINTS_PER_SECOND)

    def complain(self, event: str) -> None:
        """Log a warning, but only a few per second: clients can cause any number of them."""
        if self._complaints.allow():
            log.warning(event, left_out_before=self._complaints.take_left_out())

    def arriving(self, path: bytes) -> "ConnectionLimit[BoundedHttpProtocol]":
        """Return the connections whose bodies are arriving, for the kind of sender of this URL."""
        return self._arriving_reserved if path in self._reserved_paths else self._arriving

    def stop(self) -> None:
        """Make every further response the last one on its connection."""
        self.stopping = True
        for connection in self.connections:
            if isinstance(connection, HttpToolsProtocol) and connection.cycle is not None:
                connection.cycle.keep_alive = False


def _arriving(max_requests: int, max_bytes: int) -> "ConnectionLimit[BoundedHttpProtocol]":
    return ConnectionLimit(
        "slow body",
        max_members=max(max_requests // 2, 1),
        max_bytes=max_bytes // 2,
        send_away=BoundedHttpProtocol.refuse_body,
    )


class PipelineFlow(FlowControl):
    """Flow control that does not resume reading while a pipelined request waits.

    uvicorn resumes reading after every response and whenever the application asks for a body.
    """

    is_held = False

    def hold(self) -> None:
        """Stop reading until `release`."""
        self.is_held = True
        self.pause_reading()

    def release(self) -> None:
        """Resume reading."""
        self.is_held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class TooManyFields(Exception):
    """A request head with more fields than legitimate clients send."""


class NotOurs(Exception):
    """An unsupported HTTP version, an invalid request target, or an upgrade request with a body."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds, at almost no cost for a request that arrives in one piece.

    At most one pipelined request waits behind the one that is being answered. The parser cannot be
    stopped inside the bytes that it is given, so it is given slices that end with a head. Once a
    request waits, the rest of the received bytes stays unparsed and nothing more is read.
    """

    flow: PipelineFlow

    def __init__(self, *, server_state: State, **more: Any) -> None:
        super().__init__(server_state=server_state, **more)
        self._state = server_state
        self._head_bytes = 0
        self._head_tail = b""
        self._has_too_many_fields = False
        self._in_head = True
        self._in_message = False
        self._is_over = False
        self._arriving: ConnectionLimit[BoundedHttpProtocol] | None = None
        self._body_bytes = self._framing_bytes = self._framing_run = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._running: Exchange | None = None
        """The request that is being answered. `cycle` is the request that was received last."""
        self._received = b""
        """Received bytes, of which the parser has consumed those before `_parsed`."""
        self._parsed = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = PipelineFlow(transport)
        self._start_timer()
        self._state.open.hold(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.open.leave(self)
        self._state.heads.leave(self)
        self._stop_arriving()
        self._stop_timer()
        self.resume_writing()
        self._give_up()
        self._forget_pipeline()
        super().connection_lost(exc)

    def _forget_pipeline(self) -> None:
        """Free the requests that will never be answered, without waiting for a garbage collection.

        Each of them refers to this connection.
        """
        self._state.pipelining.leave(self)
        self._received = b""
        for cycle, _ in self.pipeline:
            cycle.on_response = _do_nothing
        if self.pipeline and self._running is not None:
            self.cycle = (
                self._running.cycle
            )  # the request that is running refers to this connection
        self.pipeline.clear()

    def drop_pipeline(self) -> None:
        """Close after the response to the running request, and drop the waiting requests."""
        if self.pipeline:
            self._forget_pipeline()
            self._end()
        else:  # the waiting bytes belong to the body of the running request
            self.hang_up()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        exchange = self._running = Exchange(cycle)
        super()._start_asgi_task(
            cycle, lambda scope, *_: app(scope, exchange.receive, exchange.send)
        )

    def _give_up(self) -> None:
        """Mark the running request as disconnected: a write to a closed connection would raise."""
        if self._running is not None and not self._running.cycle.response_complete:
            self._running.cycle.disconnected = True
            self._running.cycle.message_event.set()

    def hang_up(self) -> None:
        """Abort the connection: there are too many, and this one has been idle for longest."""
        self._give_up()
        self.transport.abort()

    def refuse_body(self) -> None:
        """Answer 503 before the body is complete: too many bodies are arriving, this one for
        longest.
        """
        if self.pipeline or self.cycle.response_started or self._running is None:
            self.hang_up()
        else:
            self._running.shed()

    def on_message_begin(self) -> None:
        self._in_head = self._in_message = True
        self._head_bytes = 0
        self._body_bytes = self._framing_bytes = self._framing_run = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # a trailer after a chunked body, which is ignored
            return
        if len(self.headers) >= HEAD_FIELDS:
            self._has_too_many_fields = True
            raise TooManyFields
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        # Some proxies treat "#" as part of the path, others do not. And after an upgrade the parser
        # takes the following bytes for another protocol, even if they are a body.
        if (
            b"#" in self.url
            or self.parser.get_http_version() not in VERSIONS
            or (self.parser.should_upgrade() and self.parser.get_method() == b"POST")
        ):
            raise NotOurs
        super().on_headers_complete()
        self._in_head = False
        self._stop_timer()
        self._state.heads.leave(self)
        self._state.open.move(self)
        if self._state.stopping:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._in_message = False
        self._stop_arriving()
        super().on_message_complete()

    def _stop_arriving(self) -> None:
        if self._arriving is not None:
            self._arriving.leave(self)
            self._arriving = None

    def on_response_complete(self) -> None:
        is_running = self._running is not None and self._running.cycle is self.cycle
        is_unread = self._in_body and is_running
        super().on_response_complete()
        if is_unread and not self.transport.is_closing():  # the rest of the body will not be read
            self.transport.close()
            return
        if self._is_idle:
            self._forget_request()
        if self.flow.is_held:
            self._parse()

    def _forget_request(self) -> None:
        """Free the head of the answered request, and its body if the application did not read it:
        thousands of idle connections would keep 64 KiB of each.

        The application has its own reference to the scope, and may still use it.
        """
        self.cycle.scope = self.scope = ANSWERED
        self.headers, self.url = [], b""
        self.cycle.body = bytearray()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        # Nothing reads the body of a GET. It would be held while the request waits for Postgres,
        # and count in no limit.
        if self.scope["method"] not in BODILESS:
            super().on_body(body)
        elif self._body_bytes > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._received = self._received + data if self._received else data
        self._parse()

    def _parse(self) -> None:
        """Parse received bytes, up to the first request that has to wait."""
        for _ in range(SLICES_PER_TURN):
            if self._is_over or self.transport.is_closing():
                self._received = b""
                return
            if self.pipeline or self._parsed == len(self._received):
                break
            self._parse_slice()
        else:
            self.loop.call_soon(self._parse)
        if self.pipeline or self._parsed < len(self._received):
            self.flow.hold()
            self._state.admission.wait(self, len(self._received))
            return
        self._received, self._parsed = b"", 0
        if self.flow.is_held:
            self._state.pipelining.leave(self)
            self.flow.release()

    def _parse_slice(self) -> None:
        start, end = self._parsed, self._slice_end()
        if not self._in_body and self._is_too_much_head(end - start):
            self._refuse_head()
            return
        if self._is_answered and self._received.find(HEAD_END, end) < 0:
            end = len(self._received)  # includes the body: no other request can be complete in it
        self._parsed = end
        self._feed(self._received[start:end])

    def _slice_end(self) -> int:
        """Return where the next head may end, so that a slice completes one request head at most.

        Blank lines in a body look the same: they only make more slices.
        """
        start = self._parsed
        if self._in_message and self._in_head:
            seam = self._head_tail + self._received[start : start + len(HEAD_END) - 1]
            found = seam.find(HEAD_END)
            if found >= 0:
                return start + found + len(HEAD_END) - len(self._head_tail)
        found = self._received.find(HEAD_END, start)
        return len(self._received) if found < 0 else found + len(HEAD_END)

    def _feed(self, data: bytes) -> None:
        in_body, cycle, body_bytes = self._in_body, self.cycle, self._body_bytes
        super().data_received(data)
        if self._is_over or self.transport.is_closing():
            return
        if self._in_body:
            self._arriving = self._state.arriving(self.scope["raw_path"])
            self._arriving.hold(self, self._body_bytes)
            if in_body and self.cycle is cycle:
                self._bound_framing(len(data), self._body_bytes - body_bytes)
        elif self._in_head or self._is_idle:
            self._bound_head(data)

    def _bound_framing(self, size: int, body_size: int) -> None:
        """Cut off a sender whose chunk sizes, chunk extensions or trailers do not end.

        The parser keeps a trailer until its line ends, so the bytes since the last ones of the
        body have a bound that does not grow with the body.
        """
        self._framing_bytes += size - body_size
        self._framing_run = 0 if body_size else self._framing_run + size
        allowed = FRAMING_BYTES + FRAMING_PER_BYTE * self._body_bytes
        if self._framing_bytes > allowed or self._framing_run > FRAMING_BYTES:
            self._give_up()
            self.transport.close()

    def _is_too_much_head(self, size: int) -> bool:
        """Return whether the head exceeds its limit with `size` more bytes."""
        return (self._head_bytes if self._in_message else 0) + size > HEAD_BYTES

    def _bound_head(self, data: bytes) -> None:
        self._head_bytes += len(data)
        self._head_tail = data[-3:]
        if self._head_bytes > HEAD_BYTES:
            self._refuse_head()
            return
        if self._head_timer is None:
            self._start_timer()
        self._state.heads.hold(self, self._head_bytes)

    def _refuse_head(self, answer: bytes = TOO_LARGE) -> None:
        """Send the error if no request is being answered, and close after the last response."""
        if self._is_answered:
            self.transport.write(answer)
        self._end()

    def send_400_response(self, msg: str) -> None:
        """Respond to a parser error. It is not known where the next request would begin."""
        self._state.complain("not_http")
        if self._in_body:
            if not self.pipeline and not self.cycle.response_started:
                self.transport.write(NOT_HTTP)
            self._give_up()
            self.transport.close()
        else:
            self._refuse_head(TOO_LARGE if self._has_too_many_fields else NOT_HTTP)

    def _unsupported_upgrade_warning(self) -> None:
        """Answer the request and then close: the following bytes may be another protocol."""
        self._end()

    def _end(self) -> None:
        """Accept no more data, and close after the last response."""
        self._is_over = True
        self._stop_timer()
        if self._is_answered:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # a close would wait forever for the client to read the response

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
    def _in_body(self) -> bool:
        return self._in_message and not self._in_head

    @property
    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _is_idle(self) -> bool:
        """Whether the connection is between two requests, so that new data is only blank lines."""
        return self.cycle is not None and self._is_answered and not self._in_message

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
