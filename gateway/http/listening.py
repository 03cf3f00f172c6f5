"""The HTTP server of `serve`: listen, bound the connections, shut down gracefully."""

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

import structlog
import uvicorn

from gateway.base.errors import CommandFailed
from gateway.http.acceptor import Acceptor
from gateway.http.protocol import BoundedHttpProtocol, State

BACKLOG: Final = 2048
OTHER_FILES: Final = 128
"""File descriptors for other uses than client connections: the ledger, Redis, the spool, modules.
"""

LAST_TURNS: Final = 5
"""Iterations of the event loop before idle connections are closed, so that data that has arrived is
read.
"""

log = structlog.get_logger("gateway.serve")


class Server(uvicorn.Server):
    """A uvicorn server with a linger period, which does not raise handled signals again: exit code
    0.

    While it lingers it responds as before, except that it is not ready and that every response is
    the last one on its connection: a load balancer goes elsewhere before anything here is closed.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        state: State,
        linger_s: float,
        on_started: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self.server_state = self._state = state
        self._linger_s = linger_s
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self.handle_exit, signum, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.started and self._linger_s and not self._state.stopping:
            log.info("lingering", seconds=self._linger_s)
            self._state.stop()
            asyncio.get_running_loop().call_later(self._linger_s, self._stop_lingering)
        else:
            super().handle_exit(sig, frame)

    def _stop_lingering(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._acceptors = [Acceptor(listener, self._make_protocol) for listener in sockets or []]
        for acceptor in self._acceptors:
            acceptor.start()
        if self.started:
            self._on_started()

    def _make_protocol(self) -> BoundedHttpProtocol:
        return BoundedHttpProtocol(
            config=self.config, server_state=self._state, app_state=self.lifespan.state
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.stop()
        for acceptor in self._acceptors:
            acceptor.stop()
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
        await super().shutdown(sockets=[])


def descriptors_for(connections: int) -> int:
    """Raise the file descriptor limit as needed, and return how many connections it allows.

    Without any free descriptor, neither the ledger nor the spool could be opened again.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    allowed = max(limit - OTHER_FILES, limit // 2)
    if allowed < connections:
        log.warning("few_descriptors", limit=limit, connections=allowed, wanted=connections)
    return min(allowed, connections)


def listen(host: str, port: int, *, setting: str = "GATEWAY_HOST or GATEWAY_PORT") -> socket.socket:
    """Return a listening socket. Raises CommandFailed with a clear message if that fails."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise CommandFailed(f"cannot listen on {host}:{port}: {reason} (set {setting})") from error
    listener.listen(BACKLOG)
    return listener
