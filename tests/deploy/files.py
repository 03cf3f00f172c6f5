"""The files of deploy/."""

from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).parents[2]
DEPLOY: Final = PROJECT / "deploy"


def text_of(name: str) -> str:
    """A file under deploy/."""
    return (DEPLOY / name).read_text(encoding="utf-8")
