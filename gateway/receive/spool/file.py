"""One file of the spool: locked by its owner, and fsynced before events are acknowledged."""

import contextlib
import fcntl
import hashlib
import os
import stat
import struct
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple
from uuid import uuid4

import orjson

from gateway.base.failpoints import reached
from gateway.base.model import Envelope, RepeatPolicy
from gateway.ledger.claims import Claim

MAGIC: Final = b"\xffGWSPL1\xff"
"""The first bytes of a record, which cannot occur inside one.

The facts are UTF-8, which never contains these bytes, and a body that contains them is encoded as
base64. Otherwise a sender could put a whole record into a body, and after damage the search for the
next record would find an event that was never verified.
"""

LENGTHS: Final = struct.Struct(">II")
CHECKSUM_BYTES: Final = 16
HEAD_BYTES: Final = len(MAGIC) + LENGTHS.size + CHECKSUM_BYTES
CHUNK_BYTES: Final = 1024 * 1024


class UnreadableRecord(OSError):
    """A complete record that this code does not understand, because another version wrote it."""


class SpoolRecord(NamedTuple):
    """A complete record and its position."""

    claim: Claim
    offset: int
    end: int


class DamagedRecord(NamedTuple):
    """Bytes that are not a complete record: torn by a crash, or corrupted by the disk."""

    offset: int
    end: int


def encode(claim: Claim) -> bytes:
    envelope = claim.envelope
    facts = orjson.dumps(
        {
            "route": claim.route,
            "provider": claim.provider,
            "event_id": envelope.id,
            "type": envelope.type,
            "account": envelope.account,
            "object_id": envelope.object_id,
            "livemode": envelope.livemode,
            "occurred_at": envelope.occurred_at,
            "received_at": claim.received_at,
            "digest": claim.digest.hex(),
            "guard": None if claim.guard is None else claim.guard.hex(),
            "window_s": None if claim.window is None else claim.window.total_seconds(),
            "headers": claim.headers,
            "repeats": claim.repeats,
            "handlers": claim.handlers,
            "order_keys": dict(claim.order_keys),
            "verified_by": claim.verified_by,
            "clock_s": claim.clock_s,
            "key_id": claim.key_id,
            "unverified": claim.unverified,
            "trace": claim.trace,
            "base64": MAGIC in claim.body,
        }
    )
    body = b64encode(claim.body) if MAGIC in claim.body else claim.body
    lengths = LENGTHS.pack(len(facts), len(body))
    return b"".join((MAGIC, lengths, _checksum(lengths, facts, body), facts, body))


def scan(stream: BinaryIO, start: int, end: int) -> Iterator[SpoolRecord | DamagedRecord]:
    """Yield the records between two offsets in order.

    After damage, continue at the next complete record.
    """
    offset = start
    while offset < end:
        kept = _read(stream, offset, end)
        if kept is None:
            found = _next_record(stream, offset + 1, end)
            yield DamagedRecord(offset, found)
            offset = found
        else:
            yield kept
            offset = kept.end


def _read(stream: BinaryIO, offset: int, end: int) -> SpoolRecord | None:
    stream.seek(offset)
    head = stream.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
        return None
    lengths = head[len(MAGIC) : len(MAGIC) + LENGTHS.size]
    facts_bytes, body_bytes = LENGTHS.unpack(lengths)
    record_end = offset + HEAD_BYTES + facts_bytes + body_bytes
    if record_end > end:
        return None
    facts, body = stream.read(facts_bytes), stream.read(body_bytes)
    if _checksum(lengths, facts, body) != head[-CHECKSUM_BYTES:]:
        return None
    try:
        return SpoolRecord(_claim(orjson.loads(facts), body), offset, record_end)
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableRecord(f"the record at {offset} was written by another version") from error


def _next_record(stream: BinaryIO, offset: int, end: int) -> int:
    """Return the offset of the next complete record, or the end if there is none."""
    while offset < end:
        stream.seek(offset)
        chunk = stream.read(min(CHUNK_BYTES, end - offset))
        place = chunk.find(MAGIC)
        if place >= 0:
            if _read(stream, offset + place, end) is not None:
                return offset + place
            offset += place + 1
        elif offset + len(chunk) >= end:
            break
        else:
            offset += len(chunk) - len(MAGIC) + 1  # the magic may span two chunks
    return end


def _checksum(lengths: bytes, facts: bytes, body: bytes) -> bytes:
    checksum = hashlib.blake2b(lengths, digest_size=CHECKSUM_BYTES)
    checksum.update(facts)
    checksum.update(body)
    return checksum.digest()


def _claim(facts: dict[str, Any], body: bytes) -> Claim:
    return Claim(
        route=facts["route"],
        provider=facts["provider"],
        envelope=Envelope(
            id=facts["event_id"],
            type=facts["type"],
            account=facts["account"],
            object_id=facts.get("object_id"),
            livemode=facts["livemode"],
            occurred_at=_moment(facts["occurred_at"]),
        ),
        received_at=datetime.fromisoformat(facts["received_at"]),
        digest=bytes.fromhex(facts["digest"]),
        headers=facts["headers"],
        body=b64decode(body) if facts.get("base64") else body,
        repeats=None if facts["repeats"] is None else RepeatPolicy(facts["repeats"]),
        handlers=tuple(facts["handlers"]),
        order_keys=facts.get("order_keys", {}),  # missing in files from before ordering existed
        spooled=True,
        verified_by=facts.get("verified_by"),
        clock_s=facts.get("clock_s"),
        key_id=facts.get("key_id"),  # missing in files from before encryption existed
        unverified=facts.get("unverified", False),
        trace=facts.get("trace"),
        guard=None if facts.get("guard") is None else bytes.fromhex(facts["guard"]),
        window=None if facts.get("window_s") is None else timedelta(seconds=facts["window_s"]),
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


SUFFIX: Final = ".spool"
UNFINISHED: Final = ".new"
"""A file that is being created. Nothing in it has been acknowledged."""

TORN: Final = ".torn"
"""Damaged bytes that were set aside in a file of their own."""

CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
PRIVATE: Final = 0o600
ADOPT_AT_ONCE: Final = 16
WINDOW_ROWS: Final = 64
MOST_AGAIN: Final = WINDOW_ROWS // 2
"""How many records of a window may be ones that were left: the others are new ones."""
WINDOW_BYTES: Final = 8 * 1024 * 1024

Span = tuple[int, int]
"""Start and end offset in a file."""


class SpoolFile:
    """Records in the order of their arrival."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._stream = path.open("rb")  # with its own position, independent of writes
        self.size = 0
        """Bytes that are certainly on disk. Anything after them was never acknowledged."""
        self.read_to = 0
        self.waiting = 0
        """Number of records that are not in the ledger yet."""
        self.oldest_at: datetime | None = None
        self.left: list[Span] = []
        """Positions of records that were read and that the ledger refused."""
        self.is_sealed = False
        """Whether appending has ended."""
        self.is_stuck = False
        """Whether the last attempt to read the file failed."""
        self.damaged: list[DamagedRecord] = []

    @classmethod
    def create(cls, directory: Path) -> "SpoolFile":
        """Create a file for this process.

        It gets its final name after it is locked, so that no other process adopts it.
        """
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
        """Adopt the file of a process that has ended.

        Return None if it is alive or another process was faster.
        """
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
        """Read an adopted file completely: count its records, and note damaged bytes."""
        self.size = os.fstat(self._descriptor).st_size
        for found in scan(self._stream, 0, self.size):
            if isinstance(found, DamagedRecord):
                self.damaged.append(found)
            else:
                self._count(found.claim.received_at)

    def append(self, records: bytes) -> None:
        """Write records and fsync them.

        After an error nothing more may be appended: the content of the disk after `size` is
        unknown, and a second fsync would not reveal it.
        """
        try:
            _write_all(self._descriptor, records)
            reached("spool.written")
            os.fsync(self._descriptor)
        except BaseException:
            self.is_sealed = True
            raise

    def promise(self, size: int, received_at: Sequence[datetime]) -> None:
        """Account for records that were appended."""
        self.size += size
        for moment in received_at:
            self._count(moment)

    def next_window(self) -> list[SpoolRecord]:
        """Return the next few records, starting with those that were left.

        Those that were left have bounds of their own, so that neither one which stays refused and
        is larger than a window nor any number of them holds up new records. If it raises, the state
        is unchanged.
        """
        again = self._some_left()
        found = [item for span in again for item in scan(self._stream, *span)]
        read_to, size = self.read_to, 0
        for item in scan(self._stream, self.read_to, self.size):
            if len(found) >= WINDOW_ROWS or size > WINDOW_BYTES:
                break
            found.append(item)
            read_to = item.end
            size += item.end - item.offset
        window = [item for item in found if isinstance(item, SpoolRecord)]
        self.damaged += [
            item for item in found if isinstance(item, DamagedRecord) and item not in self.damaged
        ]
        self.left, self.read_to = self.left[len(again) :], read_to
        self.oldest_at = window[0].claim.received_at if window else None
        return window

    def _some_left(self) -> list[Span]:
        """Return the first positions that were left, as many as come to the bytes of a window."""
        size = 0
        for count, (start, end) in enumerate(self.left[:MOST_AGAIN]):
            if size > WINDOW_BYTES:
                return self.left[:count]
            size += end - start
        return self.left[:MOST_AGAIN]

    @property
    def is_finished(self) -> bool:
        """Whether the ledger has every record."""
        return self.read_to >= self.size and not self.left

    def remove(self) -> None:
        """Delete the file and thereby release its lock. Damaged bytes are set aside first."""
        for damaged in self.damaged:
            self._set_aside(damaged)
        self.path.unlink(missing_ok=True)
        self.close()
        with contextlib.suppress(OSError):  # if the name reappears, all are duplicates
            sync_directory(self.path.parent)

    def close(self) -> None:
        """Release the file, so that another process may adopt it.

        A no-op if it is closed already.
        """
        if not self._stream.closed:
            self._stream.close()
            os.close(self._descriptor)

    def _count(self, received_at: datetime) -> None:
        self.waiting += 1
        if self.oldest_at is None:
            self.oldest_at = received_at

    def _set_aside(self, damaged: DamagedRecord) -> None:
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
    """Adopt the files of processes that have ended, oldest first, a few at a time.

    An unreadable file does not prevent the adoption of the others.
    """
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
    """Fsync a directory: an fsynced file can still be lost if its name is not durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
