"""Postgres' own tools for backups, of the same version as the server of the suite."""

import os
import subprocess
from pathlib import Path

from gateway.dev.embedded.binaries import BinaryPaths, find_postgres
from gateway.dev.embedded.home import engine_account
from tests.support.needs import lacks


def tool(name: str) -> str:
    """Where it is, beside the server; skips the test where it is not (the wheels have none)."""
    binaries = find_postgres(BinaryPaths(), engine_account())
    program = binaries.directory / name
    if not program.exists():
        lacks("pg_dump")
    return str(program)


def back_up(name: str, *arguments: str | Path) -> None:
    """Runs one of the tools to its end."""
    ended = subprocess.run(
        [tool(name), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr


def give(directory: Path, owner: Path) -> None:
    """To the account that has `owner`, with all that is in it: the engines run as another one."""
    status = owner.stat()
    for path in (directory, *directory.rglob("*")):
        os.chown(path, status.st_uid, status.st_gid)
