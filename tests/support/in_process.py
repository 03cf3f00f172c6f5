"""A user's project in the process of the tests."""

import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import ModuleType


@contextmanager
def in_project(directory: Path) -> Iterator[None]:
    """As a command finds itself: sees no module of another project, and leaves none behind."""
    path, others = list(sys.path), _take_modules()
    with chdir(directory):
        try:
            yield
        finally:
            sys.path[:] = path
            _take_modules()
            sys.modules.update(others)


def _take_modules() -> dict[str, ModuleType]:
    """Those whose names several projects have."""
    names = [name for name in sys.modules if name.partition(".")[0] in {"shop", "handlers"}]
    return {name: sys.modules.pop(name) for name in names}
