"""One file of the spool: locked by its owner, fsynced before anything is promised."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
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
WINDOW_ROWS: Final = 64
WINDOW_BYTES: Final = 8 * 1024 * 1024


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
        self.left: list[Kept] = []
        """Records that were read, and that the ledger would not take."""
        self.is_sealed = False
        """Nothing more is appended."""
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
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path = new.rename(directory / (name + SUFFIX))
            sync_directory(directory)
            return cls(path, descriptor)
        except OSError:
            os.close(descriptor)
            raise

    @classmethod
    def adopt(cls, path: Path) -> "SpoolFile | None":
        """A file whose owner is gone; None where it lives, or where somebody was faster."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink == 0:  # drained and removed since it was opened
                raise BlockingIOError
        except BlockingIOError:
            os.close(descriptor)
            return None
        file = cls(path, descriptor)
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
        """The next few records, and those that were left before them."""
        window, self.left = self.left, []
        size = 0
        for found in scan(self._stream, self.read_to, self.size):
            if isinstance(found, Kept):
                size += found.end - found.offset
                if window and (size > WINDOW_BYTES or len(window) >= WINDOW_ROWS):
                    break
                window.append(found)
            self.read_to = found.end
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
        """Lets go of the file: whoever comes next may adopt it."""
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


def adopt_all(directory: Path) -> Iterator[SpoolFile]:
    """The files of processes that are gone, oldest first."""
    for unfinished in directory.glob(f"*{UNFINISHED}"):
        abandoned = SpoolFile.adopt(unfinished)
        if abandoned is not None:
            abandoned.remove()
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        file = SpoolFile.adopt(path)
        if file is not None:
            file.take_stock()
            yield file


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
