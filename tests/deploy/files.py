"""The files of deploy/, and the programs that read them."""

import shutil
from pathlib import Path
from typing import Final

import pytest

PROJECT: Final = Path(__file__).parents[2]
DEPLOY: Final = PROJECT / "deploy"


def text_of(name: str) -> str:
    """A file under deploy/."""
    return (DEPLOY / name).read_text(encoding="utf-8")


def program(name: str, *, package: str) -> str:
    """Where it is, or the test is skipped."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"needs {name} (Debian: apt install {package})")
    return found
