"""Start, recognize and end processes, including those that an earlier run left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gateway.dev.embedded.home import EngineAccount

PROC = Path("/proc")
POLL_S = 0.01
KILL_TIMEOUT_S = 10
LOG_BYTES_KEPT = 5_000_000
# Inherit nothing: no PGPORT that moves the socket, no webhook secrets in an engine's environment.
ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def spawn(
    command: Sequence[str],
    *,
    home: Path,
    log: Path,
    account: EngineAccount | None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a process in its own session, so that Ctrl-C in the terminal does not reach it."""
    output = _open(log)
    try:
        return subprocess.Popen(  # noqa: S603 - the binaries that we looked up
            command,
            stdin=stdin,
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
        ps = ["ps", "-ww", "-p", str(pid), "-o", "args="]
        shown = subprocess.run(ps, capture_output=True, check=False)  # noqa: S603
        return os.fsdecode(shown.stdout).strip()
    try:
        arguments = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return os.fsdecode(arguments).replace("\0", " ")


def children(pid: int) -> list[int]:
    """Return the child processes. Empty without /proc."""
    found = []
    for entry in PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in parentheses may contain any character. State and parent follow
            # the last parenthesis.
            parent = int(entry.read_text(errors="replace").rpartition(")")[2].split()[1])
            found += [int(entry.parent.name)] if parent == pid else []
    return found


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
