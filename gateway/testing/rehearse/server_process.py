"""A second process that owns the temporary Postgres, and the confinement of the first one.

The process in which handlers run is confined: the kernel refuses its connections permanently and
without exception. The second process therefore starts Postgres, opens the gateway's own connections
to it and passes them on. It also answers the kernel about each attempt to connect, and cleans up at
the end, even if the first process is killed.

A seccomp filter passes each attempt to connect to the second process, which reads the address and
refuses (https://docs.kernel.org/userspace-api/seccomp_filter.html#userspace-notification). It needs
no privilege, is inherited by every thread and program that is started later, and stays until the
process ends. A network namespace would need privileges that containers rarely give, and would leave
the Unix sockets of real servers reachable.
"""

import asyncio
import ctypes
import fcntl
import ipaddress
import os
import platform
import selectors
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, Final, NamedTuple, NoReturn, Self

from gateway.base.errors import EngineFailed
from gateway.ledger.migrate import SchemaFile
from gateway.testing.throwaway import Throwaway


class _Machine(NamedTuple):
    """The numbers of an architecture: its AUDIT_ARCH and its system calls."""

    arch: int
    connect: int
    sendto: int
    sendmsg: int
    sendmmsg: int
    io_uring_setup: int
    seccomp: int


MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, 42, 44, 46, 307, 425, 317),
    "aarch64": _Machine(0xC00000B7, 203, 206, 211, 269, 425, 277),
}

PR_SET_NO_NEW_PRIVS: Final = 38
PR_SET_PTRACER: Final = 0x59616D61
SET_MODE_FILTER: Final = 1
NEW_LISTENER: Final = 1 << 3
ALLOW, NOTIFY, FAIL = 0x7FFF0000, 0x7FC00000, 0x00050000
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER_AT, ARCH_AT, FIFTH_ARGUMENT_AT = 0, 4, 16 + 4 * 8
RECEIVE: Final = 0xC0502100
SEND: Final = 0xC0182101
NOTIFICATION: Final = struct.Struct("QIIiIQ6Q")
RESPONSE: Final = struct.Struct("QqiI")
CONTINUE: Final = 1
MESSAGE: Final = struct.Struct("QI")
"""The first fields of a msghdr: the pointer to the address, and its length."""

ECONNREFUSED: Final = 111
ENOSYS: Final = 38
HARMLESS_FAMILIES: Final = frozenset({socket.AF_UNSPEC, 16})
"""AF_UNSPEC, which dissolves a socket's association, and netlink, which is the kernel itself."""

NAME_SERVICES: Final = (
    "/var/run/nscd/",
    "/run/nscd/",
    "/var/lib/sss/pipes/",
    "/run/systemd/",
    "/var/run/systemd/",
)
"""Sockets that libc asks for users and hosts before it reads its files.

They are refused, but not recorded.
"""


def can_confine() -> bool:
    """Return whether the system calls of this platform are known. The kernel may still refuse."""
    return sys.platform == "linux" and platform.machine() in MACHINES


def confine() -> int | None:
    """Refuse connections in this thread and all that it starts, permanently.

    Returns the descriptor on which another process must answer (`Refuser`), or None if this kernel
    does not offer it. Until that process answers, every attempt waits.
    """
    machine = MACHINES[platform.machine()]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return None
    instructions = _instructions(machine)
    program = _Program(len(instructions) // 8, instructions)
    listener: int = libc.syscall(
        machine.seccomp, SET_MODE_FILTER, NEW_LISTENER, ctypes.byref(program)
    )
    return listener if listener >= 0 else None


def admit_reader(pid: int) -> None:
    """Let a process read the memory of this one, even if Yama restricts that to ancestors."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, pid, 0, 0, 0)


class Refuser:
    """Answers the attempts of a confined process to connect."""

    def __init__(self, listener: int) -> None:
        self._listener = listener
        self.attempts: dict[str, None] = {}

    def fileno(self) -> int:
        return self._listener

    def answer(self) -> None:
        """Refuse the next attempt, and record its address."""
        buffer = bytearray(NOTIFICATION.size)
        try:
            fcntl.ioctl(self._listener, RECEIVE, buffer)
            id, pid, _, number, _, _, *arguments = NOTIFICATION.unpack(buffer)
            goes_on = self._may_proceed(pid, number, arguments)
            error, flags = (0, CONTINUE) if goes_on else (-ECONNREFUSED, 0)
            fcntl.ioctl(self._listener, SEND, RESPONSE.pack(id, 0, error, flags))
        except FileNotFoundError:
            pass  # the process has ended, or a signal has interrupted its call

    def _may_proceed(self, pid: int, number: int, arguments: list[int]) -> bool:
        """Return whether the call may proceed."""
        machine = MACHINES[platform.machine()]
        try:
            if number == machine.connect:
                address = read_memory(pid, arguments[1], min(arguments[2], 128))
            elif number == machine.sendto:
                address = read_memory(pid, arguments[4], min(arguments[5], 128))
            else:
                where, length = MESSAGE.unpack(read_memory(pid, arguments[1], MESSAGE.size))
                if not where:
                    return True  # the socket is connected already
                address = read_memory(pid, where, min(length, 128))
        except OSError:
            self.attempts["an address that could not be read"] = None
            return False
        if len(address) < 2 or int.from_bytes(address[:2], sys.byteorder) in HARMLESS_FAMILIES:
            return True
        target = describe_address(address)
        if not target.startswith(NAME_SERVICES):
            self.attempts[target] = None
        return False


def read_memory(pid: int, address: int, length: int) -> bytes:
    """Read the memory of another process. Raises OSError."""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        return os.pread(memory, length, address)
    finally:
        os.close(memory)


def describe_address(address: bytes) -> str:
    """Convert a socket address of C to text: a path, or host and port."""
    family, rest = int.from_bytes(address[:2], sys.byteorder), address[2:]
    if family == socket.AF_UNIX:
        path = rest[1:] if rest[:1] == b"\0" else rest.split(b"\0")[0]
        return ("@" if rest[:1] == b"\0" else "") + path.decode("utf-8", "replace")
    port = int.from_bytes(rest[:2], "big")
    if family == socket.AF_INET and len(rest) >= 6:
        return f"{ipaddress.IPv4Address(rest[2:6])}:{port}"
    if family == socket.AF_INET6 and len(rest) >= 22:
        return f"{ipaddress.IPv6Address(rest[6:22])}:{port}"
    return f"an address of the family {family}"


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _instructions(machine: _Machine) -> bytes:
    """Return the filter program.

    `sendto` is passed on only if it has an address. For `sendmsg` the other process reads the
    address.
    """
    has_address = [
        _step(LOAD, FIFTH_ARGUMENT_AT),
        _step(EQUAL, 0, 0, 2),
        _step(LOAD, FIFTH_ARGUMENT_AT + 4),
        _step(EQUAL, 0, 1, 0),
        _step(RETURN, NOTIFY),
        _step(RETURN, ALLOW),
    ]
    steps = [
        _step(LOAD, ARCH_AT),
        _step(EQUAL, machine.arch, 1, 0),
        _step(RETURN, FAIL | ENOSYS),  # the calls of 32-bit programs have other numbers
        _step(LOAD, NUMBER_AT),
        _step(EQUAL, machine.connect, 5, 0),
        _step(EQUAL, machine.sendmsg, 4, 0),
        _step(EQUAL, machine.sendmmsg, 3, 0),
        _step(EQUAL, machine.io_uring_setup, 3, 0),
        _step(EQUAL, machine.sendto, 3, 0),
        _step(RETURN, ALLOW),
        _step(RETURN, NOTIFY),
        _step(RETURN, FAIL | ENOSYS),
        *has_address,
    ]
    return b"".join(steps)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


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
