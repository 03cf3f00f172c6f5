"""Accept all waiting connections in each iteration of the event loop.

libuv accepts one connection per iteration. When many keep-alive connections keep the loop busy, an
iteration takes long, and new connections would wait for seconds: 20 to 70 new connections per
second were measured.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final

import structlog

MOST_AT_ONCE: Final = 256
LAST_ROUNDS: Final = 8
"""Maximum number of rounds before the port closes.

Enough for a full backlog, and a flood of connections cannot keep the port open.
"""

PAUSE_S: Final = 0.1
"""Pause before the next attempt if no file descriptor is left.

Retrying at once would be a busy loop.
"""

log = structlog.get_logger("gateway.receive")


class Acceptor:
    """Accept the connections of a listening socket and attach a protocol to each."""

    def __init__(
        self, listener: socket.socket, make_protocol: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._stopped = False

    def start(self) -> None:
        if not self._stopped:
            self._loop.add_reader(self._listener, self._accept)

    def stop(self) -> None:
        """Accept the connections that are already in the backlog, and close the port."""
        self._stopped = True
        for _ in range(LAST_ROUNDS):
            if not self._accept():
                break
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _accept(self) -> bool:
        """Return whether more connections may be waiting."""
        for _ in range(MOST_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except BlockingIOError:
                return False
            except ConnectionAbortedError:
                continue  # closed by the client before it was accepted
            except OSError as error:
                self._pause(error)
                return False
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        return True

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:
            with contextlib.suppress(OSError):
                connection.close()

    def _pause(self, error: OSError) -> None:
        log.error("cannot_accept", error=str(error), again_in_s=PAUSE_S)
        self._loop.remove_reader(self._listener)
        self._loop.call_later(PAUSE_S, self.start)
