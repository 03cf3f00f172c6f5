"""Store events on disk while the ledger is unavailable, and claim them in order when it is back."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import structlog

from gateway.base.errors import CannotOpen, SpoolUnavailable
from gateway.base.failpoints import reached
from gateway.base.units import format_size
from gateway.ledger.claims import Claim, Claimed, ClaimVerdict
from gateway.ledger.connection import describe
from gateway.ledger.encryption import OPEN, EncryptionKeys
from gateway.receive.spool.file import (
    SUFFIX,
    TORN,
    Span,
    SpoolFile,
    SpoolRecord,
    adopt_all,
    encode,
    scan,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolOverview:
    """The spool of a data directory, of all processes that share it."""

    events: int = 0
    bytes: int = 0
    oldest_at: datetime | None = None
    unreadable: tuple[str, ...] = ()
    """Files that were set aside or cannot be read. An operator has to examine them."""
    keys: Mapping[str, int] = field(default_factory=dict)
    """Number of encrypted records per key id."""


def look_at(directory: Path) -> SpoolOverview:
    """Count the records. A file may disappear while it is read: then the ledger has its records."""
    events, size, moments, keys = 0, 0, list[datetime](), Counter[str]()
    unreadable = list(directory.glob(f"*{TORN}"))
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        try:
            if not path.is_file():
                raise OSError("not a file")
            end = path.stat().st_size
            with path.open("rb") as stream:
                for found in scan(stream, 0, end):
                    if isinstance(found, SpoolRecord):
                        events += 1
                        moments.append(found.claim.received_at)
                        if found.claim.key_id is not None:
                            keys[found.claim.key_id] += 1
        except FileNotFoundError:
            continue
        except OSError:
            unreadable.append(path)
            continue
        size += end
    return SpoolOverview(
        events=events,
        bytes=size,
        oldest_at=min(moments, default=None),
        unreadable=tuple(map(str, sorted(unreadable))),
        keys=dict(keys),
    )


SPOOL_DIRECTORY: Final = "spool"
"""Inside the data directory."""

ADOPT_EVERY_S: Final = 5.0
"""How often to look for files of processes that have ended."""

AGAIN_S: Final = 5.0
"""Pause before the ledger is offered the records again that it refused."""

MAX_TOGETHER_BYTES: Final = 8 * 1024 * 1024
FEW: Final = 256
"""This many are claimed in a moment: waiting for them is better than queueing behind them."""

T = TypeVar("T")

log = structlog.get_logger("gateway.spool")


class Spool:
    """The files of one process: one that it writes, and those that it drains.

    The records of one fsync are acknowledged together, like the claims of one commit. A file is
    removed when the ledger has all of it. Until then, a crash only means that some records are
    claimed again, and are duplicates.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int,
        claim: Callable[[Claim], Awaitable[Claimed]],
        encryption: EncryptionKeys = OPEN,
    ) -> None:
        self._encryption = encryption
        self._directory = directory
        self._max_bytes = max_bytes
        self._claim = claim
        self._files: list[SpoolFile] = []
        self._waiting: list[tuple[Claim, asyncio.Future[None]]] = []
        self._to_write, self._to_drain = asyncio.Event(), asyncio.Event()
        self._again: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self._tasks: list[asyncio.Task[None]] = []
        self._appending: SpoolFile | None = None
        """The file that is being appended to.

        It holds more than its `size`, so it must not be removed.
        """
        self._is_failing = False
        self.working = True
        """False after a task of the spool has ended with an unexpected error."""
        self.drained = {"claimed": 0, "refused": 0}
        """Counts of events that were offered to the ledger."""
        self.on_adopted: Callable[[int], None] = lambda _: None
        """Called with the number of events in a file adopted from a process that has ended."""
        self.on_duplicate: Callable[[Claim, str], Awaitable[None]] | None = None
        """Called with a claim that is a duplicate by body, and the id of the event it repeats.

        If it raises, the claim stays in the spool and is offered again.
        """
        self.damaged = 0
        """Number of damaged pieces that were found."""

    @property
    def events(self) -> int:
        """Number of events that wait in the spool."""
        return sum(file.waiting for file in self._files)

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self._files)

    @property
    def oldest_s(self) -> float:
        """Age of the oldest waiting event in seconds."""
        moments = [file.oldest_at for file in self._files if file.oldest_at is not None]
        return max((datetime.now(UTC) - min(moments)).total_seconds(), 0.0) if moments else 0.0

    @property
    def is_behind(self) -> bool:
        """Whether more events wait than a new request should wait for."""
        return sum(file.waiting - len(file.left) for file in self._files) > FEW

    async def start(self) -> None:
        await self._adopt()
        self._tasks = [
            asyncio.create_task(work(), name=name)
            for work, name in (
                (self._write_forever, "spool write"),
                (self._drain_forever, "spool drain"),
                (self._adopt_forever, "spool adopt"),
            )
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.working = False
        if not task.cancelled():
            log.error("spool_ended", task=task.get_name(), error=repr(task.exception()))

    async def stop(self) -> None:
        """Release the files. Their events wait for the next process."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._disk.shutdown()
        for _, kept in self._waiting:
            if not kept.done():
                kept.set_exception(SpoolUnavailable("the gateway is shutting down"))
        if self.events:
            log.warning("spool_left", events=self.events, directory=str(self._directory))
        for file in self._files:
            file.close()

    async def wait_empty(self) -> None:
        """Wait until the ledger has all earlier events, except those that it refused."""
        await self._empty.wait()

    async def keep(self, claim: Claim) -> None:
        """Write the event to disk. Raises SpoolUnavailable."""
        if not self.working:
            raise SpoolUnavailable("a part of the spool has ended")
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((claim, kept))
        self._to_write.set()
        await kept

    async def _write_forever(self) -> None:
        while True:
            await self._to_write.wait()
            batch = self._next_batch()
            if batch:
                await self._write(batch)
            else:
                self._to_write.clear()

    def _next_batch(self) -> list[tuple[Claim, asyncio.Future[None]]]:
        batch, size = [], 0
        while self._waiting and size < MAX_TOGETHER_BYTES:
            claim, kept = self._waiting.pop(0)
            if not kept.done():
                size += len(claim.body)
                batch.append((claim, kept))
        return batch

    async def _write(self, batch: Sequence[tuple[Claim, asyncio.Future[None]]]) -> None:
        try:
            records = b"".join(encode(self._encryption.seal_for_disk(claim)) for claim, _ in batch)
            await self._append(records, [claim.received_at for claim, _ in batch])
        except (OSError, SpoolUnavailable, TypeError) as error:
            self._note_failing(error)
            for _, kept in batch:
                if not kept.done():
                    kept.set_exception(SpoolUnavailable(f"the spool: {describe(error)}"))
            return
        self._is_failing = False
        reached("spool.synced")
        for _, kept in batch:
            if not kept.done():
                kept.set_result(None)

    async def _append(self, records: bytes, received_at: Sequence[datetime]) -> None:
        if self.size + len(records) > self._max_bytes:
            raise SpoolUnavailable(f"full: {format_size(self._max_bytes)} (GATEWAY_SPOOL_SIZE)")
        file = next((f for f in self._files if not f.is_sealed), None)
        if file is None:
            file = await self._on_disk(lambda: SpoolFile.create(self._directory))
            self._files.append(file)
            if not self._is_failing:
                log.warning("spooling", file=str(file.path))
        self._empty.clear()
        self._appending = file
        try:
            await self._on_disk(lambda: file.append(records))
            file.promise(len(records), received_at)
        except OSError:
            if not file.size:  # nothing acknowledged; many such files may follow
                self._files.remove(file)
                await self._on_disk(file.remove)
            raise
        finally:
            self._appending = None
            self._to_drain.set()  # even after an error: the file has to be removed

    def _note_failing(self, error: Exception) -> None:
        if not self._is_failing:
            log.error("spool_failing", error=describe(error), note="senders are answered 503")
        self._is_failing = True

    async def _adopt_forever(self) -> None:
        while True:
            await asyncio.sleep(ADOPT_EVERY_S)
            await self._adopt()

    async def _adopt(self) -> None:
        adopted = await self._on_disk(lambda: adopt_all(self._directory, _unreadable))
        for file in adopted:
            log.warning("spool_adopted", file=str(file.path), events=file.waiting)
            self.on_adopted(file.waiting)
            self._note_damaged(file, 0)
            reached("spool.adopted")
        if adopted:
            self._files = sorted([*self._files, *adopted], key=lambda file: file.path.name)
            self._empty.clear()
            self._to_drain.set()

    async def _drain_forever(self) -> None:
        while True:
            await self._to_drain.wait()
            self._to_drain.clear()
            for file in list(self._files):
                await self._drain(file)
            await self._put_away()
            if any(file.left or file.is_stuck or file.is_finished for file in self._files):
                if self._again is not None:
                    self._again.cancel()
                self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._to_drain.set)

    async def _drain(self, file: SpoolFile) -> None:
        """Claim the records of a file, until all are done or the ledger refuses a whole window."""
        left: list[Span] = []
        file.is_stuck = False
        while not file.is_finished:
            known = len(file.damaged)
            try:
                window = await self._on_disk(file.next_window)
            except OSError as error:
                _unreadable(file.path, error)
                file.is_stuck = True
                break
            self._note_damaged(file, known)
            refused, readable = self._open(file, window)
            for some in _apart(readable):
                refused += await self._claim_all(file, some)
            left += refused
            if refused and len(refused) == len(window):
                break
        file.left += left  # behind those that were not read: they are offered next time

    def _open(
        self, file: SpoolFile, window: Sequence[SpoolRecord]
    ) -> tuple[list[Span], list[SpoolRecord]]:
        """Decrypt records.

        Return the positions of those that cannot be decrypted, and the others.
        """
        refused: list[Span] = []
        readable: list[SpoolRecord] = []
        for kept in window:
            try:
                readable.append(kept._replace(claim=self._encryption.open_from_disk(kept.claim)))
            except CannotOpen as error:
                log.error("spooled_event_unreadable", file=str(file.path), error=describe(error))
                refused.append((kept.offset, kept.end))
        self.drained["refused"] += len(refused)
        return refused, readable

    async def _claim_all(self, file: SpoolFile, window: Sequence[SpoolRecord]) -> list[Span]:
        """Claim records. Return the positions of those that were refused."""
        answers = await asyncio.gather(
            *(self._settle(kept.claim) for kept in window), return_exceptions=True
        )
        reached("spool.claimed")
        refused: list[Span] = []
        for kept, answer in zip(window, answers, strict=True):
            if isinstance(answer, Claimed):
                file.waiting -= 1
                _tell(kept.claim, answer)
            else:
                refused.append((kept.offset, kept.end))
        self.drained["claimed"] += len(window) - len(refused)
        self.drained["refused"] += len(refused)
        if refused:
            log.error("spooled_events_refused", file=str(file.path), events=len(refused))
        return refused

    async def _settle(self, claim: Claim) -> Claimed:
        answer = await self._claim(claim)
        first = answer.first_event_id if answer.verdict is ClaimVerdict.DUPLICATE else None
        if first is not None and self.on_duplicate is not None:
            await self.on_duplicate(claim, first)
        return answer

    def _note_damaged(self, file: SpoolFile, known: int) -> None:
        self.damaged += len(file.damaged) - known
        _tell_damaged(file, known)

    async def _put_away(self) -> None:
        """Remove the files whose records are all in the ledger."""
        for file in list(self._files):
            if not file.is_finished or file is self._appending:
                continue
            file.is_sealed = True  # even if the removal fails, nothing more is appended
            try:
                await self._on_disk(file.remove)
                self._files.remove(file)  # not earlier: a stop in between has to close it
            except OSError as error:
                log.error("spool_not_removed", file=str(file.path), error=describe(error))
            reached("spool.removed")
        is_drained = all(f.is_stuck or f.waiting == len(f.left) for f in self._files)
        if is_drained and self._appending is None:
            self._empty.set()

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)


def _tell(claim: Claim, claimed: Claimed) -> None:
    fields = _fields(claim)
    if claimed.conflict:
        log.warning("duplicate_with_another_body", **fields)
    elif claimed.is_flagged:
        log.warning("event_flagged", repeat_of=claimed.first_event_id, **fields)
    log.info(f"spooled_event_{claimed.verdict}", delivery_ids=claimed.delivery_ids, **fields)


def _tell_damaged(file: SpoolFile, known: int) -> None:
    for damaged in file.damaged[known:]:
        log.error(
            "spool_damaged",
            file=str(file.path),
            offset=damaged.offset,
            bytes=damaged.end - damaged.offset,
            note="set aside: a tail was torn by a crash before it was acknowledged; else, the disk",
        )


def _unreadable(path: Path, error: OSError) -> None:
    log.error("spool_unreadable", file=str(path), error=describe(error))


def _fields(claim: Claim) -> dict[str, str]:
    return {"route": claim.route, "event_id": claim.envelope.id, "type": claim.envelope.type}


def _apart(window: Sequence[SpoolRecord]) -> Iterator[list[SpoolRecord]]:
    """Group the records that may be claimed concurrently: one at a time for each order key."""
    some: list[SpoolRecord] = []
    taken: set[tuple[str, str, str]] = set()
    for kept in window:
        keys = {(kept.claim.route, *item) for item in kept.claim.order_keys.items()}
        if keys & taken:
            yield some
            some, taken = [], set()
        some.append(kept)
        taken |= keys
    if some:
        yield some
