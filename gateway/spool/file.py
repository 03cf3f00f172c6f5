"""One file of the spool: locked by its owner, fsynced before anything is promised."""

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import uuid4

from gateway.failpoints import reached
from gateway.spool.record import Damaged, Kept, scan

SUFFIX: Final = ".spool"
UNFINISHED: Final = ".new"
"""A file that is being made: nothing in it was acknowledged."""

TORN: Final = ".torn"
"""Bytes that were set aside."""

CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
PRIVATE: Final = 0o600
ADOPT_AT_ONCE: Final = 16
WINDOW_ROWS: Final = 64
WINDOW_BYTES: Final = 8 * 1024 * 1024

Span = tuple[int, int]
"""From where to where in a file."""


class SpoolFile:
    """Records in the order of their arrival."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._stream = path.open("rb")  # with a place of its own: not that of the writes
        self.size = 0
        """Bytes that are on the disk for certain: what lies behind them was never promised."""
        self.read_to = 0
        self.waiting = 0
        """Records that the ledger does not have yet."""
        self.oldest_at: datetime | None = None
        self.left: list[Span] = []
        """Where the records are that were read, and that the ledger would not take."""
        self.is_sealed = False
        """Nothing more is appended."""
        self.is_stuck = False
        """It could not be read when that was last tried."""
        self.damaged: list[Damaged] = []

    @classmethod
    def create(cls, directory: Path) -> "SpoolFile":
        """A file of our own. It gets its name when it is locked, so that nobody else adopts it."""
        missing = [place for place in (directory, *directory.parents) if not place.exists()]
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for made in reversed(missing):
            sync_directory(made.parent)
        name = f"{time.time_ns():020d}-{uuid4().hex[:8]}"
        new = directory / (name + UNFINISHED)
        descriptor = os.open(new, CREATE | os.O_EXCL, PRIVATE)
        path = directory / (name + SUFFIX)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(path)
            sync_directory(directory)
            return cls(path, descriptor)
        except OSError:
            os.close(descriptor)
            for made in (new, path):
                made.unlink(missing_ok=True)
            raise

    @classmethod
    def adopt(cls, path: Path) -> "SpoolFile | None":
        """A file whose owner is gone; None where it lives, or where somebody was faster."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink == 0:  # drained and removed since it was opened
                raise BlockingIOError
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError("not a file")
            file = cls(path, descriptor)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        file.is_sealed = True
        return file

    def take_stock(self) -> None:
        """Reads an adopted file through: counts its records, and notes what is none."""
        self.size = os.fstat(self._descriptor).st_size
        for found in scan(self._stream, 0, self.size):
            if isinstance(found, Damaged):
                self.damaged.append(found)
            else:
                self._count(found.claim.received_at)

    def append(self, records: bytes) -> None:
        """On the disk when it returns. After an error nothing more may be appended: what the disk
        holds behind `size` is unknown, and a second fsync would not tell."""
        try:
            _write_all(self._descriptor, records)
            reached("spool.written")
            os.fsync(self._descriptor)
        except BaseException:
            self.is_sealed = True
            raise

    def promise(self, size: int, received_at: Sequence[datetime]) -> None:
        """Takes note of records that were appended."""
        self.size += size
        for moment in received_at:
            self._count(moment)

    def next_window(self) -> list[Kept]:
        """The next few records, those first that were left. Nothing has changed if it raises."""
        found = [item for span in self.left[:WINDOW_ROWS] for item in scan(self._stream, *span)]
        read_to, size = self.read_to, 0
        for item in scan(self._stream, self.read_to, self.size):
            if len(found) >= WINDOW_ROWS or size > WINDOW_BYTES:
                break
            found.append(item)
            read_to, size = item.end, size + item.end - item.offset
        window = [item for item in found if isinstance(item, Kept)]
        self.damaged += [
            item for item in found if isinstance(item, Damaged) and item not in self.damaged
        ]
        self.left, self.read_to = self.left[WINDOW_ROWS:], read_to
        self.oldest_at = window[0].claim.received_at if window else None
        return window

    @property
    def is_finished(self) -> bool:
        """Whether the ledger has all of it."""
        return self.read_to >= self.size and not self.left

    def remove(self) -> None:
        """Forgets the file, and its lock with it. What could not be read is set aside."""
        for damaged in self.damaged:
            self._set_aside(damaged)
        self.path.unlink(missing_ok=True)
        self.close()
        with contextlib.suppress(OSError):  # if its name comes back, it is all duplicates
            sync_directory(self.path.parent)

    def close(self) -> None:
        """Release the file, if that was not done before, so that another process may adopt it."""
        if not self._stream.closed:
            self._stream.close()
            os.close(self._descriptor)

    def _count(self, received_at: datetime) -> None:
        self.waiting += 1
        if self.oldest_at is None:
            self.oldest_at = received_at

    def _set_aside(self, damaged: Damaged) -> None:
        self._stream.seek(damaged.offset)
        piece = self.path.with_name(f"{self.path.stem}-{damaged.offset}{TORN}")
        descriptor = os.open(piece, CREATE | os.O_TRUNC, PRIVATE)
        try:
            _write_all(descriptor, self._stream.read(damaged.end - damaged.offset))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(self.path.parent)


def adopt_all(directory: Path, complain: Callable[[Path, OSError], None]) -> list[SpoolFile]:
    """The files of processes that are gone, oldest first, a few at a time. One that cannot be read
    does not keep back the others."""
    adopted: list[SpoolFile] = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if path.suffix not in {SUFFIX, UNFINISHED} or len(adopted) >= ADOPT_AT_ONCE:
            continue
        try:
            file = _adopt(path)
        except OSError as error:
            complain(path, error)
            continue
        if file is not None:
            adopted.append(file)
    return adopted


def _adopt(path: Path) -> SpoolFile | None:
    file = SpoolFile.adopt(path)
    if file is None:
        return None
    try:
        file.take_stock()
        if path.suffix == UNFINISHED or not file.size:  # nothing in it was ever acknowledged
            file.damaged.clear()
            file.remove()
            return None
    except OSError:
        file.close()
        raise
    return file


def sync_directory(directory: Path) -> None:
    """Makes the names in it durable: a file that was fsynced can still be lost with its name."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
