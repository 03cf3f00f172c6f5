"""The directory of the embedded engines: its lock, its owner, its files."""

import fcntl
import hashlib
import os
import pwd
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.base.errors import EngineFailed

PID_BYTES = 20


class HomeLock:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            holder = os.read(self._descriptor, PID_BYTES).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise EngineFailed(
                f"{path.parent} is in use by another gateway (process {holder or 'unknown'})"
            ) from taken
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        os.close(self._descriptor)


NAMES = ("postgres", "nobody")
ROOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAccount:
    name: str
    uid: int
    gid: int

    def reaches(self, path: Path) -> bool:
        """Return whether the account may enter (or run) `path` and enter
        every directory above it.
        """
        resolved = path.resolve()
        return all(self._may_enter(step.stat()) for step in (resolved, *resolved.parents))

    def _may_enter(self, status: os.stat_result) -> bool:
        if status.st_uid == self.uid:
            return bool(status.st_mode & 0o100)
        if status.st_gid == self.gid:
            return bool(status.st_mode & 0o010)
        return bool(status.st_mode & 0o001)


def engine_account(*homes: Path) -> EngineAccount | None:
    """Return the owner of existing data, or else the first account of NAMES. None if not root."""
    if os.geteuid() != ROOT:
        return None
    owners = [home.stat().st_uid for home in homes if _holds_data(home)]
    known: list[int | str] = [*owners, *NAMES]
    for account in known:
        with suppress(KeyError):
            entry = pwd.getpwnam(account) if isinstance(account, str) else pwd.getpwuid(account)
            if entry.pw_uid != ROOT:
                return EngineAccount(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise EngineFailed(
        f"Postgres refuses to run as root, and there is no account {' or '.join(NAMES)} "
        "to run it as: start the gateway as an ordinary user"
    )


# sun_path holds 104 bytes on macOS and 108 on Linux. This leaves room for the socket's name.
SOCKET_DIRECTORY_BYTES = 80
# Characters without a special meaning in URLs, in asyncpg's host lists and in engine options.
PLAIN = re.compile(r"[A-Za-z0-9/._+-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHome:
    path: Path
    sockets: Path
    account: EngineAccount | None

    def remove(self) -> None:
        """Delete the data directory, and the socket directory if it is a different one."""
        for directory in {self.path, self.sockets}:
            shutil.rmtree(directory, ignore_errors=True)


def settle(directory: Path, system: Path) -> EngineHome:
    """Create the engine's directories, under `system` if its account cannot reach `directory`."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    fallback = system / _digest(directory)
    account = engine_account(directory, fallback)
    path = directory if account is None else _reachable(directory, fallback, account)
    if path == fallback:
        share(system)
    _make_private(path, account, adopt=True)
    return EngineHome(path=path, sockets=_socket_directory(path, system, account), account=account)


def share(directory: Path) -> None:
    """Create a directory that other accounts may enter but not change."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    if _created(directory):
        directory.chmod(0o755)
    status = directory.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022 or not stat.S_ISDIR(status.st_mode):
        raise EngineFailed(f"{directory} must be a directory that only {_me()} can write to")


def _reachable(directory: Path, fallback: Path, account: EngineAccount) -> Path:
    reached = account.reaches(directory.parent)
    if _holds_data(directory):
        if not reached:
            raise EngineFailed(
                f"the account {account.name} cannot reach the data in {directory}: let it pass "
                f"through the directories above (chmod o+x), or move the data away"
            )
        return directory
    return directory if reached and not _holds_data(fallback) else fallback


def _socket_directory(path: Path, system: Path, account: EngineAccount | None) -> Path:
    if PLAIN.fullmatch(str(path)) and len(os.fsencode(path)) <= SOCKET_DIRECTORY_BYTES:
        return path
    temporary = Path(tempfile.gettempdir()).resolve()
    if account is not None and not account.reaches(temporary):
        share(system)
        temporary = system
    sockets = temporary / f"gateway-{_digest(path)}"
    _make_private(sockets, account, adopt=False)
    return sockets


def _make_private(directory: Path, account: EngineAccount | None, *, adopt: bool) -> None:
    """Create a directory with mode 0700 and check its owner.

    `adopt` takes over an existing empty directory. Do not adopt one in a shared directory such as
    /tmp: another user may have prepared it.
    """
    uid = os.geteuid() if account is None else account.uid
    if _created(directory) or (adopt and directory.is_dir() and not _holds_data(directory)):
        directory.chmod(0o700)
        if account is not None:
            os.chown(directory, account.uid, account.gid)
    status = directory.lstat()
    if status.st_uid != uid or status.st_mode & 0o077 or not stat.S_ISDIR(status.st_mode):
        owner = _me() if account is None else account.name
        raise EngineFailed(f"{directory} must be a directory of {owner} alone (mode 0700)")


def _created(directory: Path) -> bool:
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _holds_data(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


def _digest(directory: Path) -> str:
    return hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]


def _me() -> str:
    return f"user {os.geteuid()}"


# A running server needs no headers, static libraries or Python files.
LEFT_OUT = shutil.ignore_patterns("include", "pgxs", "pkgconfig", "*.a", "*.py", "__pycache__")


def copy_package(package: Path, system: Path, label: str) -> Path:
    """Return the directory of the copy.

    It is laid out as in site-packages, so that RPATHs stay valid.
    """
    share(system)
    share(system / "engines")
    target = system / "engines" / label
    if not target.exists():
        _copy(package, target)
    return target


def _copy(package: Path, target: Path) -> None:
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=target.parent))
    try:
        for part in (package, package.with_name(f"{package.name}.libs")):
            if part.is_dir():
                shutil.copytree(part, draft / part.name, symlinks=True, ignore=LEFT_OUT)
        _open_to_all(draft)
        os.sync()
        draft.rename(target)
    except OSError:
        # Another process has made the same copy first. Any other failure leaves no
        # target, and is raised.
        if not target.exists():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _open_to_all(tree: Path) -> None:
    for directory, _, files in os.walk(tree):
        Path(directory).chmod(0o755)
        for file in (Path(directory, name) for name in files):
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)
