"""Writes several files: all of them, or none."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.errors import CommandFailed


def read_if_there(path: Path) -> str | None:
    """The text of a file; None where there is none."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{path}: cannot be read: {_reason(error)}") from error


@contextlib.contextmanager
def written(files: Mapping[Path, str]) -> Iterator[None]:
    """Writes them, and takes it all back where that fails, or what is done within the block."""
    with contextlib.ExitStack() as undo:
        for path, text in files.items():
            try:
                _write(path.resolve(), text, undo)
            except OSError as error:
                raise CommandFailed(f"{path}: cannot be written: {_reason(error)}") from error
        yield
        undo.pop_all()


def _write(path: Path, text: str, undo: contextlib.ExitStack) -> None:
    _make_folder(path.parent, undo)
    before = path.read_bytes() if path.exists() else None
    _put(path, text.encode())
    if before is None:
        undo.callback(path.unlink, missing_ok=True)
    else:
        undo.callback(_put, path, before)


def _make_folder(folder: Path, undo: contextlib.ExitStack) -> None:
    if not folder.exists():
        _make_folder(folder.parent, undo)
        folder.mkdir()
        undo.callback(_remove_folder, folder)


def _remove_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # somebody else has put something into it
        folder.rmdir()


def _put(path: Path, content: bytes) -> None:
    """In one step: who reads the file meanwhile, as a watching `up` does, sees no half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        if path.exists():
            temporary.chmod(path.stat().st_mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return str(error.strerror) if isinstance(error, OSError) else "it is not UTF-8"
