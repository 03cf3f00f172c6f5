"""The HTTP port of a worker: `/healthz`, `/readyz` and `/metrics`, served by a separate thread.

A handler that blocks the event loop would otherwise block the responses too, and a prober could not
distinguish a stuck worker from an unreachable one.
"""

import asyncio
import errno
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.base.errors import CommandFailed
from gateway.http.acceptor import Acceptor
from gateway.http.listening import listen
from gateway.http.protocol import BoundedHttpProtocol, State
from gateway.receive import answers
from gateway.receive.answers import Answer

MOST_CONNECTIONS: Final = 64
"""Past this number, the connection that was idle for longest is closed.

A prober needs one or two.
"""

KEEP_ALIVE_S: Final = 75
MOST_REQUESTS: Final = 64
MOST_BYTES: Final = 4 * 1024 * 1024
"""For bodies and pipelined requests.

A quarter is for the latter, enough for one read of some clients.
"""
BIND_AGAIN_S: Final = 1.0
STOP_S: Final = 2.0
UNAVAILABLE: Final = 503
MARKS: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
SHOWN: Final = {
    "content-type": CONTENT_TYPE_LATEST,
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
}

log = structlog.get_logger("gateway.worker")


class Probes:
    """The ASGI application, which reports the state of the worker."""

    def __init__(
        self,
        *,
        stuck: Callable[[], str | None],
        not_ready: Callable[[], str | None],
        metrics: Callable[[], Awaitable[bytes]],
        guard: Callable[[Request], Answer | None],
    ) -> None:
        self._stuck = stuck
        self._not_ready = not_ready
        self._metrics = metrics
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer(scope)
        if answer is not None:
            await answer.send(scope, send)
            return
        shown = Response(await self._metrics(), headers=SHOWN)
        await shown(scope, receive, send)

    def _answer(self, scope: Scope) -> Answer | None:
        """Return the response, or None if the client may read the metrics."""
        path = scope["raw_path"]
        if path not in {b"/healthz", b"/readyz", b"/metrics"}:
            return answers.HIDDEN
        if scope["method"] not in {"GET", "HEAD"}:
            return answers.READ_ONLY
        if path == b"/healthz":
            return _told("alive", "stuck", self._stuck())
        if path == b"/readyz":
            return _told("ready", "not ready", self._not_ready())
        return self._guard(Request(scope))


def _told(good: str, bad: str, reason: str | None) -> Answer:
    if reason is None:
        return Answer(200, b'{"status":"%b"}' % good.encode(), (answers.JSON, *MARKS))
    told = b'{"status":"%b","reason":"%b"}' % (bad.encode(), reason.encode())
    return Answer(UNAVAILABLE, told, (answers.JSON, *MARKS))


class Port:
    """Listen in a thread until stopped."""

    def __init__(self, host: str, port: int, app: Callable[[], Probes]) -> None:
        self._address = host, port
        self._app = app
        """Creates the application in the thread whose event loop it uses."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probes", daemon=True)

    def start(self) -> None:
        """Start to listen. Raises CommandFailed if listening on the address fails.

        If the port is in use, the thread retries until it is free: deliveries must not wait for a
        port, and the process that holds it may be about to exit.
        """
        listener = self._listen()
        self._listener = listener
        self._thread.start()
        self._begun.wait(STOP_S)

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STOP_S)

    def _listen(self) -> socket.socket | None:
        try:
            return listen(*self._address, setting="GATEWAY_HOST or GATEWAY_WORKER_PORT")
        except CommandFailed as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
                raise
            log.warning("worker_port_in_use", reason=str(error), again_in_s=BIND_AGAIN_S)
            return None

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._begun.set()
        listener = await self._bound()
        if listener is None:
            return
        host, port = listener.getsockname()[:2]
        log.info("worker_port", url=f"http://{host}:{port}")
        state = State(
            max_connections=MOST_CONNECTIONS, max_requests=MOST_REQUESTS, max_bytes=MOST_BYTES
        )
        config = uvicorn.Config(
            self._app(),
            http=BoundedHttpProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        config.load()
        acceptor = Acceptor(
            listener,
            lambda: BoundedHttpProtocol(config=config, server_state=state, app_state={}),
        )
        acceptor.start()
        await self._stop.wait()
        acceptor.stop()
        for connection in list(state.connections):
            connection.transport.abort()

    async def _bound(self) -> socket.socket | None:
        """Return the bound socket, or None if the port was stopped before it was free."""
        assert self._stop is not None  # noqa: S101 (set by the caller)
        listener = self._listener
        while listener is None:
            try:
                async with asyncio.timeout(BIND_AGAIN_S):
                    await self._stop.wait()
                return None
            except TimeoutError:
                listener = self._listen_again()
        return listener

    def _listen_again(self) -> socket.socket | None:
        try:
            return listen(*self._address)
        except CommandFailed:
            return None
