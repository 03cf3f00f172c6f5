"""Start, recognize and end processes, including those that an earlier run left behind."""

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gateway.dev.embedded.home import EngineAccount

TIMEOUT_S = 5.0
PROTOCOL_3 = 196608
DATABASE_MISSING = "3D000"


def ping(path: Path) -> bool:
    """Return whether Redis answers. It does not while it loads its data."""
    with _connect(path) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith(b"+PONG")


def query(path: Path, *, user: str, database: str, sql: str = "") -> str | None:
    """Log in to Postgres without a password and run `sql`.

    Return the SQLSTATE of an error, or None.
    """
    with _connect(path) as connection:
        names = f"user\0{user}\0database\0{database}\0\0".encode()
        connection.sendall(struct.pack("!ii", len(names) + 8, PROTOCOL_3) + names)
        refusal = _read_until_ready(connection)
        if refusal is None and sql:
            text = sql.encode() + b"\0"
            connection.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)
            refusal = _read_until_ready(connection)
    return refusal


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(TIMEOUT_S)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _read_until_ready(connection: socket.socket) -> str | None:
    refusal = None
    while True:
        kind, length = struct.unpack("!ci", _read(connection, 5))
        body = _read(connection, length - 4)
        if kind == b"E":
            fields = {field[:1]: field[1:] for field in body.split(b"\0")}
            refusal = fields[b"C"].decode()
            if fields[b"V"] == b"FATAL":
                return refusal
        if kind == b"Z":
            return refusal


def _read(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionResetError("the server closed the connection")
        received += chunk
    return received


PROC = Path("/proc")
POLL_S = 0.01
KILL_TIMEOUT_S = 10
LOG_BYTES_KEPT = 5_000_000
# Inherit nothing: no PGPORT that moves the socket, no webhook secrets in an engine's environment.
ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def spawn(
    command: Sequence[str], *, home: Path, log: Path, account: EngineAccount | None
) -> subprocess.Popen[bytes]:
    """Start a process in its own session, so that Ctrl-C in the terminal does not reach it."""
    output = _open(log)
    try:
        return subprocess.Popen(  # noqa: S603 - the binaries that we looked up
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=home,
            env=ENVIRONMENT,
            start_new_session=True,
            umask=0o077,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
        )
    finally:
        os.close(output)


def shorten(log: Path) -> int:
    """Truncate a log that is too long. Return its size in bytes."""
    descriptor = _open(log)
    try:
        if os.fstat(descriptor).st_size > LOG_BYTES_KEPT:
            os.ftruncate(descriptor, 0)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def command_line(pid: int) -> str:
    """Return the arguments joined by spaces.

    Empty for a zombie or a process that does not exist.
    """
    if not PROC.is_dir():
        return _ps("-p", str(pid), "-o", "args=").strip()
    try:
        arguments = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return os.fsdecode(arguments).replace("\0", " ")


def children(pid: int) -> list[int]:
    listing = _proc_parents() if PROC.is_dir() else _ps_parents()
    return [child for child, parent in listing if parent == pid]


def inside(directory: Path, name: str) -> list[int]:
    """Return the processes of this name whose working directory is `directory`.

    Empty without /proc.
    """
    found = []
    for entry in PROC.glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "comm").read_text().strip() == name:
                found += [int(entry.name)] if (entry / "cwd").readlink() == directory else []
    return found


def end(pid: int, number: signal.Signals, proof: str, timeout_s: float) -> None:
    """End a process of an earlier run if its command line contains `proof`."""
    if proof in command_line(pid):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(pid, number)
    if not wait_until(lambda: proof not in command_line(pid), timeout_s):
        with suppress(ProcessLookupError):
            kill_tree(pid)


def kill_tree(pid: int) -> None:
    """Kill a process and its children with SIGKILL, like a power cut.

    The parent is stopped first. It then cannot react to the deaths of its children, and because it
    does not reap them, their process ids cannot be reused.
    """
    os.kill(pid, signal.SIGSTOP)
    kill_all([*children(pid), pid])


def kill_all(pids: Sequence[int]) -> None:
    lines = {pid: command_line(pid) for pid in pids}
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: not any(line and command_line(pid) == line for pid, line in lines.items()),
        KILL_TIMEOUT_S,
    )


def _open(log: Path) -> int:
    # The engine's account owns the directory, so as root we must not follow a symlink in it.
    return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _proc_parents() -> list[tuple[int, int]]:
    found = []
    for entry in PROC.glob("[0-9]*/stat"):
        try:
            # The name in parentheses may contain any character. State and parent follow
            # the last parenthesis.
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        found.append((int(entry.parent.name), int(fields[1])))
    return found


def _ps_parents() -> list[tuple[int, int]]:
    lines = _ps("-axo", "pid=,ppid=").splitlines()
    return [(int(pid), int(parent)) for pid, parent in (line.split() for line in lines)]


def _ps(*options: str) -> str:
    command = ["ps", "-ww", *options]
    return subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, errors="surrogateescape"
    ).stdout
