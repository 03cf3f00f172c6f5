"""Store rejected requests, after the response and without delaying it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog
from prometheus_client import Counter

from gateway.base.errors import Duplicate, StorageUnavailable
from gateway.http.limits import Throttle
from gateway.ledger.connection import TROUBLE, Connection, Opener, close_quietly, describe
from gateway.ledger.rejected import (
    Bounds,
    NoRoom,
    Refusal,
    Rejected,
    compare_clocks,
    keep_items,
    keep_rejected,
    note_refusals,
)
from gateway.receive.rejected.recorder import HASHED_BYTES, Recorder
from gateway.receive.rejected.requests import UnexaminedRequest, Waiting
from gateway.receive.rejected.tries import HashBudget

PER_SECOND: Final = 20
"""Limits the writes that a sender can cause by replaying a captured request a thousand times a
second.
"""

PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 8.0
"""The longest pause between two writes, while more requests arrive than are held."""

BREATH_S: Final = 0.01
"""Pause between two examined requests, so that requests being answered can proceed."""

STOP_S: Final = 2.0

MOST_LATER: Final = 1_000
MOST_LATER_BYTES: Final = 8 * 1024 * 1024
"""How many rejected items and duplicates of senders that never retry may wait for Postgres."""

NO_ROOM: Final = "it cannot be released, since too many rejected items of the route wait for that"

log = structlog.get_logger("gateway.receive")

Keep = Callable[[Connection, Sequence[Rejected], Bounds], Awaitable[int | None]]


@dataclass(slots=True, eq=False)
class _Waiter:
    """A request whose response waits until its duplicates are committed."""

    rows: list[Rejected]
    committed: asyncio.Future[None]


class RejectedRequests:
    """Writes rejected requests in batches, once a second, over a connection opened for each batch.

    It writes to two tables: the ids of requests with repeated bodies, for reconcile, and the ring
    of rejected requests, for operators. Requests that are lost because the process ends or the
    ledger is unavailable are only counted.
    """

    def __init__(
        self, url: str, *, recorder: Recorder, bounds: Bounds, largest_body: int, counted: Counter
    ) -> None:
        self._opener = Opener(url, name="gateway refusals")
        self.recorder = recorder
        """Contains the secrets, so it is replaced when they are reloaded."""
        self._bounds = bounds
        self.largest_body = largest_body
        self._kept, self._left_out, self._lost, self._trimmed = (
            counted.labels(outcome) for outcome in ("kept", "left_out", "lost", "trimmed")
        )
        self._repeated: list[Refusal] = []
        self._waiting = Waiting()
        self._throttle = Throttle(PER_SECOND)
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._keeping = asyncio.Lock()
        """Ensures that only one connection at a time writes rejected items and duplicates."""
        self._duplicates: list[_Waiter] = []
        self._later: deque[UnexaminedRequest] = deque()
        """Rejected items and duplicates of senders that never retry, until they are committed."""

    def note(self, refusal: Refusal) -> None:
        """Queue an event id for writing, unless the limit per second has been reached."""
        if self._throttle.allow():
            self._repeated.append(refusal)
            self._start()

    def has_room(self, route: str) -> bool:
        """Return whether one more request of this route can be queued now."""
        return bool(self._bounds.rows) and self._waiting.has_room(route)

    def keep(self, request: UnexaminedRequest) -> None:
        """Queue a request for the ring, if there is room."""
        if self._bounds.rows:
            self._waiting.add(request)
            self._start()

    async def keep_items(self, requests: Sequence[UnexaminedRequest]) -> None:
        """Commit rejected items of a batch, before the batch is acknowledged without them.

        Raises StorageUnavailable, or NoRoom if they cannot be kept.
        """
        rows = await asyncio.to_thread(self._record, requests)
        if not self._bounds.rows or any(row.body is None for row in rows):
            raise NoRoom
        async with self._keeping:
            await self._commit(keep_items, rows)

    async def keep_duplicates(self, requests: Sequence[UnexaminedRequest]) -> None:
        """Commit duplicates of a sender without event ids, before they are acknowledged.

        Requests that wait for a commit meanwhile share the next one. Raises StorageUnavailable.
        """
        if not self._bounds.rows:
            return
        rows = await asyncio.to_thread(self._record, requests)
        waiter = _Waiter(rows, asyncio.get_running_loop().create_future())
        self._duplicates.append(waiter)
        try:
            async with self._keeping:
                if not waiter.committed.done():
                    await self._commit_duplicates()
            await waiter.committed
        finally:
            waiter.committed.cancel()  # if this request was cancelled, the result is not awaited

    async def _commit_duplicates(self) -> None:
        waiters = [waiter for waiter in self._duplicates if not waiter.committed.done()]
        self._duplicates = []
        try:
            await self._commit(keep_rejected, [row for waiter in waiters for row in waiter.rows])
        except StorageUnavailable as error:
            for waiter in waiters:
                if not waiter.committed.done():
                    waiter.committed.set_exception(StorageUnavailable(str(error)))
        except BaseException:
            self._duplicates += waiters  # the next of these requests commits them
            raise
        else:
            for waiter in waiters:
                if not waiter.committed.done():
                    waiter.committed.set_result(None)

    async def _commit(self, keep: Keep, rows: Sequence[Rejected]) -> None:
        connection = await self._opener.reach()
        try:
            self._note_trimmed(await keep(connection, rows, self._bounds))
        except TROUBLE as error:
            raise StorageUnavailable(f"not kept: {describe(error)}") from error
        finally:
            await close_quietly(connection)
        self._kept.inc(len(rows))

    def _note_trimmed(self, duplicates: int | None) -> None:
        if duplicates:
            self._trimmed.inc(duplicates)
            log.warning("duplicates_trimmed", duplicates=duplicates, rows=self._bounds.rows)

    def keep_later(self, requests: Sequence[UnexaminedRequest]) -> None:
        """Commit rejected items and duplicates as soon as Postgres is available.

        Their sender never retries, so they wait in memory. Those that do not fit are kept like any
        rejected request.
        """
        for request in requests:
            held_bytes = sum(map(_size, (*self._later, request)))
            if len(self._later) < MOST_LATER and held_bytes <= MOST_LATER_BYTES:
                self._later.append(request)
            elif request.code == Duplicate.code:
                self.keep(request)
            else:
                self.list_items([request])
        self._start()

    def list_items(self, requests: Sequence[UnexaminedRequest]) -> None:
        """Keep rejected items for which there is no room like any rejected request.

        They can be displaced by others, and cannot be released.
        """
        for request in requests:
            reason = f"{request.reason}; {NO_ROOM}"
            self.keep(request._replace(reason=reason, verified_by=None))

    def _record(self, requests: Sequence[UnexaminedRequest]) -> list[Rejected]:
        budget = HashBudget(HASHED_BYTES)
        return [self.recorder.record(request, None, budget) for request in requests]

    async def stop(self) -> None:
        """Write the queued requests, unless that takes too long."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=STOP_S)
            self._task.cancel()
        if self._later:
            self._lost.inc(len(self._later))
            log.error("rejected_items_lost", requests=len(self._later))

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write(), name="refused")

    async def _write(self) -> None:
        pause_s = PAUSE_S
        while self._repeated or self._waiting or self._later:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            repeated, self._repeated = self._repeated, []
            waiting, self._waiting = self._waiting, Waiting()
            self._left_out.inc(waiting.left_out)
            await self._write_down(repeated, waiting)
            await self._write_later()
            is_behind = waiting.left_out or self._later
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if is_behind else PAUSE_S
            if self._later and self._stopping.is_set():
                return

    async def _write_down(self, repeated: list[Refusal], waiting: Waiting) -> None:
        connection = None
        try:
            connection = await self._opener.reach()
            if repeated:
                await note_refusals(connection, repeated)
            if waiting:
                await self._keep(connection, waiting.requests())
        except (StorageUnavailable, *TROUBLE) as error:
            self._lost.inc(len(waiting))
            log.warning("refusals_not_noted", error=describe(error), requests=len(waiting))
        else:
            self._kept.inc(len(waiting))
        finally:
            await close_quietly(connection)

    async def _write_later(self) -> None:
        """Commit the requests that wait for Postgres: all of one route and kind at once, or else
        one of them.
        """
        while self._later:
            first = self._later[0]
            alike = [one for one in self._later if _kind(one) == _kind(first)]
            if await self._write_alike(alike) or await self._write_alike([first]):
                continue
            self._later.rotate(-1)  # start with another one next time: this one may be at fault
            return

    async def _write_alike(self, requests: Sequence[UnexaminedRequest]) -> bool:
        """Return whether these requests no longer wait."""
        is_duplicate = requests[0].code == Duplicate.code
        try:
            await (self.keep_duplicates if is_duplicate else self.keep_items)(requests)
        except NoRoom:
            if len(requests) > 1:
                return False
            self.list_items(requests)
        except StorageUnavailable as error:
            log.warning("refusals_not_noted", error=describe(error), requests=len(self._later))
            return False
        written = {id(request) for request in requests}
        self._later = deque(one for one in self._later if id(one) not in written)
        return True

    async def _keep(self, connection: Connection, requests: list[UnexaminedRequest]) -> None:
        is_stale = any(request.code == "STALE_TIMESTAMP" for request in requests)
        clocks = await compare_clocks(connection) if is_stale else None
        rows, budget = [], HashBudget(HASHED_BYTES)
        for request in requests:
            # One by one: all at once they would hold the interpreter lock for twenty milliseconds.
            rows.append(await asyncio.to_thread(self.recorder.record, request, clocks, budget))
            await asyncio.sleep(BREATH_S)
        self._note_trimmed(await keep_rejected(connection, rows, self._bounds))


def _kind(request: UnexaminedRequest) -> tuple[str, bool]:
    return request.route, request.code == Duplicate.code


def _size(request: UnexaminedRequest) -> int:
    headers = sum(len(name) + len(value) for name, value in request.headers.items())
    return len(request.body or b"") + headers
