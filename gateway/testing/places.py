"""Where in the user's own code a call came from."""

import sys
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Final

OWN_FOLDER: Final = Path(__file__).parents[1]


def calling_place(root: Path) -> str | None:
    """`file:line` of the innermost frame that is the user's, the file seen from `root`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = _seen_from(root, frame.f_code.co_filename)
        if file is not None:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


@lru_cache(maxsize=4096)
def _seen_from(root: Path, name: str) -> Path | None:
    """The file as the user knows it, where it is the user's. Asked for at every step of a run."""
    file = Path(name)
    return file.relative_to(root) if is_users(file, root) else None


def is_users(file: Path, root: Path) -> bool:
    """Whether it is a file of the project, and neither a library's nor our own."""
    is_library = "site-packages" in file.parts or file.is_relative_to(OWN_FOLDER)
    return file.is_relative_to(root) and not is_library
