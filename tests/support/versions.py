"""The code of the schema before this one."""

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from gateway.ledger.migrate import read_migrations

REPOSITORY: Final = Path(__file__).parents[2]


class NoHistory(Exception):
    """There is no git here, or not this repository."""


def find_older() -> str:
    """The commit before the newest migration was added."""
    newest = f"gateway/ledger/migrations/{read_migrations()[-1].name}.sql"
    added = _git("log", "--diff-filter=A", "--format=%H", "--", newest).decode().split()
    return f"{added[-1]}^" if added else "HEAD"


def has(commit: str, path: str) -> bool:
    """Whether there was such a file."""
    return bool(_git("ls-tree", "--name-only", commit, path))


def unpack(commit: str, directory: Path) -> None:
    """The package of that commit."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, "gateway"))) as archive:
        archive.extractall(directory, filter="data")


def _git(*arguments: str) -> bytes:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoHistory(str(error)) from error
