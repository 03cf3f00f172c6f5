"""A second process that owns the temporary Postgres of a rehearsal.

The process in which handlers run is confined: the kernel refuses its connections permanently and
without exception. The second process therefore starts Postgres, opens the gateway's own connections
to it and passes them on. It also answers the kernel about each attempt to connect, and cleans up at
the end, even if the first process is killed.
"""

import asyncio
import ctypes
import os
import selectors
import signal
import socket
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, Final, NoReturn, Self

from gateway.base.errors import EngineFailed
from gateway.ledger.migrate import SchemaFile
from gateway.testing.rehearse.confinement import (
    Refuser,
    admit_reader,
    can_confine,
    confine,
    read_memory,
)
from gateway.testing.throwaway import Throwaway

CONNECT_TIMEOUT_S: Final = 10.0
ENDED: Final = "the process of the throwaway Postgres has ended"
PROBE: Final = b"can this be read?"


class ServerProcess:
    """The rehearsal's handle on the second process. It also has the methods of a `Throwaway`."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        self._pid = os.fork()  # a new interpreter would take longer to start than Postgres
        if self._pid == 0:
            ours.close()
            _run(Connection(theirs.detach()), parent)
        theirs.close()
        self._connection: Connection[Any, Any] = Connection(ours.detach())
        self.is_confined = False

    def confine(self) -> None:
        """Confine this process, if the kernel and its security modules allow it."""
        admit_reader(self._pid)
        probe = ctypes.create_string_buffer(PROBE)
        if self._ask("can_read", ctypes.addressof(probe)):
            # To send the listener is itself a system call that the listener would have to answer.
            # An existing thread therefore sends it, because the filter does not apply to that
            # thread.
            listeners: list[int | None] = []
            is_there = threading.Event()
            sender = threading.Thread(target=self._send_listener, args=(is_there, listeners))
            sender.start()
            listeners.append(confine())
            is_there.set()
            sender.join()
            self.is_confined = listeners[0] is not None

    def start(self, schema: Sequence[SchemaFile], server_url: str | None, engines: str) -> None:
        """Create the template. Raises CommandFailed if Postgres rejects the schema."""
        self._ask("start", tuple(schema), server_url, engines)

    async def clone(self) -> str:
        """Create a database from the template, and return its URL."""
        url: str = self._ask("clone")
        return url

    async def drop(self, url: str) -> None:
        """Drop a database that was cloned."""
        self._ask("drop", url)

    def connect(self, address: str | tuple[str, int]) -> socket.socket:
        """Return a connected socket. Raises OSError."""
        self._ask("connect", address)
        connected = socket.socket(fileno=recv_handle(self._connection))
        connected.setblocking(False)
        return connected

    def take_attempts(self) -> list[str]:
        """Return the addresses that the kernel has refused since the last call."""
        attempts: list[str] = self._ask("take_attempts")
        return attempts

    def close(self) -> None:
        """Wait until the temporary Postgres is removed."""
        self._connection.close()
        os.waitpid(self._pid, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send_listener(self, is_there: threading.Event, listeners: list[int | None]) -> None:
        is_there.wait()
        [listener] = listeners
        if listener is not None:
            self._connection.send(("watch", ()))
            send_handle(self._connection, listener, self._pid)
            os.close(listener)
            self._result()

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            self._connection.send((name, arguments))
        except ConnectionError:
            raise EngineFailed(ENDED) from None
        return self._result()

    def _result(self) -> Any:
        try:
            result, error = self._connection.recv()
        except (EOFError, ConnectionError):
            raise EngineFailed(ENDED) from None
        if error is not None:
            raise error
        return result


@contextmanager
def confined() -> Iterator[ServerProcess | None]:
    """Confine this process if the system allows it. Yields None if it is not Linux."""
    if not can_confine():
        yield None
        return
    with ServerProcess() as server_process:
        server_process.confine()
        yield server_process


class _Server:
    """The code that runs in the second process."""

    def __init__(self, connection: "Connection[Any, Any]", parent: int) -> None:
        self._connection = connection
        self._parent = parent
        self._throwaway: Throwaway | None = None
        self._refuser: Refuser | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ, self._serve)

    def run(self) -> None:
        """Serve until the first process closes the connection or ends for any reason."""
        try:
            while True:
                for key, _ in self._selector.select():
                    key.data()
        except (EOFError, ConnectionError):
            pass
        finally:
            if self._throwaway is not None:
                self._throwaway.stop()

    def _serve(self) -> None:
        name, arguments = self._connection.recv()
        result, failure = None, None
        try:
            result = getattr(self, name)(*arguments)
        except Exception as error:
            failure = error
        self._connection.send((result, failure))
        if name == "connect" and failure is None:
            with self._connected:
                send_handle(self._connection, self._connected.fileno(), self._parent)

    def start(self, schema: Sequence[SchemaFile], server_url: str | None, engines: str) -> None:
        throwaway = Throwaway(schema, server_url=server_url, engines=engines)
        throwaway.start()
        self._throwaway = throwaway

    def clone(self) -> str:
        return asyncio.run(self._databases.clone())

    def drop(self, url: str) -> None:
        asyncio.run(self._databases.drop(url))

    def connect(self, address: str | tuple[str, int]) -> None:
        if isinstance(address, str):
            self._connected = socket.socket(socket.AF_UNIX)
            self._connected.settimeout(CONNECT_TIMEOUT_S)
            self._connected.connect(address)
        else:
            self._connected = socket.create_connection(address, CONNECT_TIMEOUT_S)

    def can_read(self, address: int) -> bool:
        try:
            return read_memory(self._parent, address, len(PROBE)) == PROBE
        except OSError:
            return False

    def watch(self) -> None:
        self._refuser = Refuser(recv_handle(self._connection))
        self._selector.register(self._refuser, selectors.EVENT_READ, self._refuser.answer)

    def take_attempts(self) -> list[str]:
        if self._refuser is None:
            return []
        attempts = list(self._refuser.attempts)
        self._refuser.attempts.clear()
        return attempts

    @property
    def _databases(self) -> Throwaway:
        if self._throwaway is None:
            raise RuntimeError("the throwaway Postgres has not been started")
        return self._throwaway


def _run(connection: "Connection[Any, Any]", parent: int) -> NoReturn:
    """Run the second process, which ends when the first one does."""
    try:
        os.setsid()  # Ctrl-C is for the rehearsal, which then closes the connection
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):  # a reader of the output must not wait for this process
            os.dup2(nowhere, descriptor)
        _Server(connection, parent).run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)
