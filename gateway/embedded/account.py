"""The unprivileged account that engines run as when the gateway itself is root."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import EngineFailed

NAMES = ("postgres", "nobody")
ROOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    name: str
    uid: int
    gid: int

    def reaches(self, path: Path) -> bool:
        """Whether the account may enter `path` (or run it) and every directory above it."""
        resolved = path.resolve()
        return all(self._may_enter(step.stat()) for step in (resolved, *resolved.parents))

    def _may_enter(self, status: os.stat_result) -> bool:
        if status.st_uid == self.uid:
            return bool(status.st_mode & 0o100)
        if status.st_gid == self.gid:
            return bool(status.st_mode & 0o010)
        return bool(status.st_mode & 0o001)


def engine_account(*homes: Path) -> Account | None:
    """Whoever owns the data that exists already, else the first of NAMES; None when not root."""
    if os.geteuid() != ROOT:
        return None
    found = [*map(_owner, homes), *map(_named, NAMES)]
    for account in found:
        if account is not None:
            return account
    raise EngineFailed(
        f"Postgres refuses to run as root, and there is no account {' or '.join(NAMES)} "
        "to run it as: start the gateway as an ordinary user"
    )


def _owner(home: Path) -> Account | None:
    if not home.is_dir() or not any(home.iterdir()):
        return None
    uid = home.stat().st_uid
    try:
        return None if uid == ROOT else _account(pwd.getpwuid(uid))
    except KeyError:
        return None


def _named(name: str) -> Account | None:
    try:
        return _account(pwd.getpwnam(name))
    except KeyError:
        return None


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)
