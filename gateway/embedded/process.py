"""Starting, recognising and ending processes, also those that a former run left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gateway.embedded.account import Account

PROC = Path("/proc")
POLL_S = 0.01
KILL_TIMEOUT_S = 10
LOG_BYTES_KEPT = 5_000_000
# Nothing of ours: no PGPORT that moves the socket, no webhook secrets in an engine's environment.
ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def spawn(
    command: Sequence[str], *, home: Path, log: Path, account: Account | None
) -> subprocess.Popen[bytes]:
    """Start in a session of its own, so that Ctrl-C in the terminal does not reach it."""
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
    """Start a long log anew; the bytes that it holds then."""
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
    """The arguments joined by spaces; empty for a process that is gone or a zombie."""
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
    """Processes of that name that work in `directory`; none where there is no /proc."""
    found = []
    for entry in PROC.glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "comm").read_text().strip() == name:
                found += [int(entry.name)] if (entry / "cwd").readlink() == directory else []
    return found


def end(pid: int, number: signal.Signals, proof: str, timeout_s: float) -> None:
    """End a process that a former run started, if its command line proves that it is that one."""
    if proof in command_line(pid):
        os.kill(pid, number)
    if not wait_until(lambda: proof not in command_line(pid), timeout_s):
        with suppress(ProcessLookupError):
            kill_tree(pid)


def kill_tree(pid: int) -> None:
    """`kill -9` of a process and its children, as a power cut would.

    While the parent is stopped it cannot react to their deaths, and as it does not collect them
    their process ids cannot be given to anyone else.
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
    # The engine's account owns the directory: as root, a link that it planted is not followed.
    return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _proc_parents() -> list[tuple[int, int]]:
    found = []
    for entry in PROC.glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold anything; state and parent follow the last one.
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
