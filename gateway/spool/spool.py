"""Takes events that the ledger cannot, and gives them to it in order when it is back."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import structlog

from gateway.errors import SpoolUnavailable
from gateway.failpoints import reached
from gateway.ledger.claims import Claim, Claimed, Verdict
from gateway.ledger.connection import describe
from gateway.notation.quantities import format_size
from gateway.spool.file import Span, SpoolFile, adopt_all
from gateway.spool.record import Kept, encode

SPOOL_DIRECTORY: Final = "spool"
"""In the data directory."""

ADOPT_EVERY_S: Final = 5.0
"""How often to look for files of processes that are gone."""

AGAIN_S: Final = 5.0
"""Before the ledger is asked again for what it refused."""

MAX_TOGETHER_BYTES: Final = 8 * 1024 * 1024
FEW: Final = 256
"""So many are claimed in a moment: it is better to wait for them than to queue up behind them."""

T = TypeVar("T")

log = structlog.get_logger("gateway.spool")


class Spool:
    """The files of one process: one that it writes, and those that it drains.

    Records of one fsync are acknowledged together, as claims of one commit are. A file is removed
    when the ledger has all of it; until then a crash only means that some are claimed again, and
    are duplicates.
    """

    def __init__(
        self, directory: Path, *, max_bytes: int, claim: Callable[[Claim], Awaitable[Claimed]]
    ) -> None:
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
        """Holds more than its `size` says, so that it must not be removed."""
        self._is_failing = False
        self.working = True
        """False once a part of it ended on an error that nobody foresaw."""
        self.drained = {"claimed": 0, "refused": 0}
        """Events that were offered to the ledger."""
        self.on_adopted: Callable[[int], None] = lambda _: None
        """Told of events that a process which is gone had left behind."""
        self.on_duplicate: Callable[[Claim, str], Awaitable[None]] | None = None
        """Called with a claim that is a duplicate because of its body, and the event it repeats.
        If it raises, the claim stays in the spool and is offered again."""
        self.damaged = 0
        """Pieces that could not be read."""

    @property
    def events(self) -> int:
        """How many events wait here."""
        return sum(file.waiting for file in self._files)

    @property
    def size(self) -> int:
        """What the files take on the disk."""
        return sum(file.size for file in self._files)

    @property
    def oldest_s(self) -> float:
        """For how long the oldest has waited."""
        moments = [file.oldest_at for file in self._files if file.oldest_at is not None]
        return max((datetime.now(UTC) - min(moments)).total_seconds(), 0.0) if moments else 0.0

    @property
    def is_behind(self) -> bool:
        """Whether more waits here than a request should wait for."""
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
        """Lets go of the files; what is in them waits for the next process."""
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
        """Until the ledger has everything that came before, but for what it would not take."""
        await self._empty.wait()

    async def keep(self, claim: Claim) -> None:
        """Returns when the event is on the disk. Raises SpoolUnavailable where it cannot be."""
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
            records = b"".join(encode(claim) for claim, _ in batch)
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
            if not file.size:  # nothing was promised in it, and there may be many more like it
                self._files.remove(file)
                await self._on_disk(file.remove)
            raise
        finally:
            self._appending = None
            self._to_drain.set()  # also where it failed: the file has to be put away

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
        """Until the ledger has all of it, or would not take any of the next few."""
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
            refused = [s for some in _apart(window) for s in await self._claim_all(file, some)]
            left += refused
            if refused and len(refused) == len(window):
                break
        file.left = [*left, *file.left]

    async def _claim_all(self, file: SpoolFile, window: Sequence[Kept]) -> list[Span]:
        """Returns where those are that were refused."""
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
        first = answer.first_event_id if answer.verdict is Verdict.DUPLICATE else None
        if first is not None and self.on_duplicate is not None:
            await self.on_duplicate(claim, first)
        return answer

    def _note_damaged(self, file: SpoolFile, known: int) -> None:
        self.damaged += len(file.damaged) - known
        _tell_damaged(file, known)

    async def _put_away(self) -> None:
        """Removes the files that the ledger has all of."""
        for file in list(self._files):
            if not file.is_finished or file is self._appending:
                continue
            file.is_sealed = True  # whatever becomes of the removal: nothing more is appended
            try:
                await self._on_disk(file.remove)
                self._files.remove(file)  # not before: a stop meanwhile has to close it
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
        log.warning("event_flagged", replay_of=claimed.first_event_id, **fields)
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


def _apart(window: Sequence[Kept]) -> Iterator[list[Kept]]:
    """Those that may be claimed at once: of events with the same order key one after the other."""
    some: list[Kept] = []
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
