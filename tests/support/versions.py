"""The code before and after a migration."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

import gateway
from gateway.ledger.migrate import read_migrations

REPOSITORY: Final = Path(__file__).parents[2]
PACKAGE: Final = Path(gateway.__file__).parent
MIGRATIONS: Final = Path("gateway", "ledger", "migrations")


class NoHistory(Exception):
    """There is no git here, or not this repository."""


def find_older() -> str | None:
    """Return the commit before the newest migration was added, or None if that one is the first."""
    *before, newest = read_migrations()
    if not before:
        return None
    added = _git("log", "--diff-filter=A", "--format=%H", "--", f"{MIGRATIONS}/{newest.name}.sql")
    commits = added.decode().split()
    return f"{commits[-1]}^" if commits else "HEAD"


def unpack(commit: str, directory: Path) -> Path:
    """Write the package of that commit to a directory, for PYTHONPATH."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, "gateway"))) as archive:
        archive.extractall(directory, filter="data")
    return directory


def add_migration(directory: Path, sql: str) -> Path:
    """Copy this code to a directory, with one migration more."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, directory / "gateway", ignore=ignored)
    number = read_migrations()[-1].version + 1
    (directory / MIGRATIONS / f"{number:04}_added.sql").write_text(sql, encoding="utf-8")
    return directory


def _git(*arguments: str) -> bytes:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoHistory(str(error)) from error
