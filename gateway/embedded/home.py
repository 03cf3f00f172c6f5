"""Where an engine lives: a private directory for its data, and one for its socket."""

import hashlib
import os
import re
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gateway.embedded.account import Account, engine_account
from gateway.errors import EngineFailed

# sun_path holds 104 bytes on macOS and 108 on Linux; this leaves room for the socket's name.
SOCKET_DIRECTORY_BYTES = 80
# Characters that mean themselves in URLs, in asyncpg's host lists and in engine options.
PLAIN = re.compile(r"[A-Za-z0-9/._+-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    path: Path
    sockets: Path
    account: Account | None

    def remove(self) -> None:
        """Delete the data, and the socket directory if it lies elsewhere."""
        for directory in {self.path, self.sockets}:
            shutil.rmtree(directory, ignore_errors=True)


def settle(directory: Path, system: Path) -> Home:
    """Make the engine's directories, under `system` where its account cannot reach `directory`."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    fallback = system / _digest(directory)
    account = engine_account(directory, fallback)
    path = directory if account is None else _reachable(directory, fallback, account)
    if path == fallback:
        share(system)
    _make_private(path, account, adopt=True)
    return Home(path=path, sockets=_socket_directory(path, system, account), account=account)


def share(directory: Path) -> None:
    """Make a directory of ours that other accounts may enter but not change."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    if _created(directory):
        directory.chmod(0o755)
    status = directory.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022 or not stat.S_ISDIR(status.st_mode):
        raise EngineFailed(f"{directory} must be a directory that only {_me()} can write to")


def _reachable(directory: Path, fallback: Path, account: Account) -> Path:
    reached = account.reaches(directory.parent)
    if _holds_data(directory):
        if not reached:
            raise EngineFailed(
                f"the account {account.name} cannot reach the data in {directory}: let it pass "
                f"through the directories above (chmod o+x), or move the data away"
            )
        return directory
    return directory if reached and not _holds_data(fallback) else fallback


def _socket_directory(path: Path, system: Path, account: Account | None) -> Path:
    if PLAIN.fullmatch(str(path)) and len(os.fsencode(path)) <= SOCKET_DIRECTORY_BYTES:
        return path
    temporary = Path(tempfile.gettempdir()).resolve()
    if account is not None and not account.reaches(temporary):
        share(system)
        temporary = system
    sockets = temporary / f"gateway-{_digest(path)}"
    _make_private(sockets, account, adopt=False)
    return sockets


def _make_private(directory: Path, account: Account | None, *, adopt: bool) -> None:
    """`adopt` takes over an empty directory; one in a shared place may be someone's trap."""
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
