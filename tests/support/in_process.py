"""A user's project in the process of the tests."""

import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path


@contextmanager
def in_project(directory: Path) -> Iterator[None]:
    """As a command finds itself; leaves no module behind that another project has, too."""
    path, modules = list(sys.path), set(sys.modules)
    with chdir(directory):
        try:
            yield
        finally:
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                if name.partition(".")[0] in {"shop", "handlers"}:
                    del sys.modules[name]
