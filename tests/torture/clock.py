"""Wall clocks that jump: libfaketime before the C library of the processes that we start."""

import importlib.util
import shutil
from pathlib import Path
from typing import Final

LIBRARY: Final = Path("vendor/libfaketime/src/libfaketime.so.1")
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 (where libfaketime leaves its files)


def find_library() -> Path | None:
    """libfaketime, without importing its package, which would change this process's clock too."""
    spec = importlib.util.find_spec("libfaketime")
    for place in (spec and spec.submodule_search_locations) or ():
        if (library := Path(place) / LIBRARY).is_file():
            return library
    return None


class Clock:
    """The wall clock of some processes. Their monotonic clocks are left alone, as a real jump does.

    Without the library it is the machine's own, and cannot be moved.
    """

    def __init__(self, directory: Path, library: Path | None) -> None:
        self._directory = directory
        self._file = directory / "offset"
        self.is_movable = library is not None
        self.environ: dict[str, str] = {}
        if library is None:
            return
        directory.mkdir()
        directory.chmod(0o755)  # the engine's account must get there, too
        copied = Path(shutil.copy(library, directory))
        copied.chmod(0o755)
        self.move(0)
        self.environ = {
            "LD_PRELOAD": str(copied),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            # Read at every look at the clock: it is one clock, and jumps for all at once.
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def move(self, offset_s: int) -> None:
        """Lets the processes' time differ by so much from ours, from now on."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(f"{offset_s:+}\n", encoding="ascii")
        draft.chmod(0o644)
        draft.replace(self._file)


def clean_up(pids: set[int]) -> None:
    """Removes what libfaketime left of processes that were killed."""
    for pid in pids:
        for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
            (SHARED_MEMORY / name).unlink(missing_ok=True)
