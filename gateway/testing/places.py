"""Find the line of the user's code from which a call was made."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Final

OWN_FOLDER: Final = Path(__file__).parents[1]

_TASK: Final[ContextVar[str | None]] = ContextVar("where a task was begun", default=None)
_THREAD: Final = threading.local()


def calling_place(root: Path) -> str | None:
    """Return `file:line` of the innermost frame in the user's code, relative to `root`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = _seen_from(root, frame.f_code.co_filename)
        if file is not None:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def library_call(root: Path) -> tuple[str, ...]:
    """Return the library functions called from the user's code, the outermost first."""
    frame: FrameType | None = sys._getframe(1)
    names: list[str] = []
    while frame is not None and _seen_from(root, frame.f_code.co_filename) is None:
        if not Path(frame.f_code.co_filename).is_relative_to(OWN_FOLDER):
            names.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return tuple(reversed(names)) if frame is not None else ()


@contextmanager
def submitted(place: str | None) -> Iterator[None]:
    """Record the line that submitted a thread's work.

    The frames of the thread may not show the user's code.
    """
    _THREAD.place = place
    try:
        yield
    finally:
        _THREAD.place = None


def begin_task(place: str | None) -> None:
    """Record the line that started the task to which the current context belongs."""
    if place is not None:
        _TASK.set(place)


def submitted_at() -> str | None:
    """Return the line that started this thread's work or this task."""
    place: str | None = getattr(_THREAD, "place", None)
    return place or _TASK.get()


@lru_cache(maxsize=4096)
def _seen_from(root: Path, name: str) -> Path | None:
    """Return the file relative to `root` if it is the user's, or else None.

    It is cached, because it is called at every step of a run.
    """
    file = Path(name)
    return file.relative_to(root) if is_users(file, root) else None


def is_users(file: Path, root: Path) -> bool:
    """Return whether the file belongs to the project, and not to a library or the gateway."""
    is_library = "site-packages" in file.parts or file.is_relative_to(OWN_FOLDER)
    return file.is_relative_to(root) and not is_library
