"""Make the kernel refuse the connections of a process, including those of libraries in C.

A seccomp filter passes each attempt to connect to another process, which reads the address and
refuses (https://docs.kernel.org/userspace-api/seccomp_filter.html#userspace-notification). It needs
no privilege, is inherited by every thread and program that is started later, and stays until the
process ends. A network namespace would need privileges that containers rarely give, and would leave
the Unix sockets of real servers reachable.
"""

import ctypes
import fcntl
import ipaddress
import os
import platform
import socket
import struct
import sys
from typing import Final, NamedTuple


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
            goes_on = self._judge(pid, number, arguments)
            error, flags = (0, CONTINUE) if goes_on else (-ECONNREFUSED, 0)
            fcntl.ioctl(self._listener, SEND, RESPONSE.pack(id, 0, error, flags))
        except FileNotFoundError:
            pass  # the process has ended, or a signal has interrupted its call

    def _judge(self, pid: int, number: int, arguments: list[int]) -> bool:
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
