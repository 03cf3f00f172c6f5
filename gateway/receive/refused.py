"""Writes down what was refused, after the answer and never in its way."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog
from prometheus_client import Counter

from gateway.errors import StorageUnavailable
from gateway.ledger.connection import TROUBLE, Connection, Opener, close_quietly, describe
from gateway.ledger.refusals import Refusal, note_refusals
from gateway.ledger.rejected import (
    Bounds,
    NoRoom,
    Rejected,
    compare_clocks,
    keep_items,
    keep_rejected,
)
from gateway.receive.recorder import HASHED_BYTES, Recorder
from gateway.receive.throttle import Throttle
from gateway.receive.trying import Budget
from gateway.receive.turned_away import TurnedAway
from gateway.receive.waiting import Waiting

PER_SECOND: Final = 20
"""Whoever replays a captured request a thousand times a second is not to be served with writes."""

PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 8.0
"""Between two writes, while more comes than is held."""

BREATH_S: Final = 0.01
"""For those who are waited for, between two requests that are looked into."""

STOP_S: Final = 2.0

log = structlog.get_logger("gateway.receive")


class Refused:
    """Writes what it is told, a second's worth at a time, on a connection opened for it.

    Two tables: the ids of replayed requests, for reconcile, and the ring of refused requests, for
    people. What is lost with the process, or with a ledger that is away, is counted and gone.
    """

    def __init__(
        self, url: str, *, recorder: Recorder, bounds: Bounds, largest_body: int, counted: Counter
    ) -> None:
        self._opener = Opener(url, name="gateway refusals")
        self.recorder = recorder
        """Knows the secrets: replaced when they are."""
        self._bounds = bounds
        self.largest_body = largest_body
        self._kept, self._left_out, self._lost = (
            counted.labels(outcome) for outcome in ("kept", "left_out", "lost")
        )
        self._replayed: list[Refusal] = []
        self._waiting = Waiting()
        self._throttle = Throttle(PER_SECOND)
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._keeping = asyncio.Lock()
        """One connection at a time keeps rejected items."""

    def note(self, refusal: Refusal) -> None:
        """Takes an id to write down, unless there have been enough of them this second."""
        if self._throttle.allow():
            self._replayed.append(refusal)
            self._start()

    def has_room(self, route: str) -> bool:
        """Whether the ring would take one more right now."""
        return bool(self._bounds.rows) and self._waiting.has_room(route)

    def keep(self, request: TurnedAway) -> None:
        """Takes a request for the ring, as far as there is room."""
        if self._bounds.rows:
            self._waiting.add(request)
            self._start()

    async def keep_items(self, requests: Sequence[TurnedAway]) -> None:
        """Commit rejected items of a batch, before it is acknowledged without them.

        Raises StorageUnavailable, or NoRoom if they cannot be kept.
        """
        rows = await asyncio.to_thread(self._record, requests)
        if not self._bounds.rows or any(row.body is None for row in rows):
            raise NoRoom
        async with self._keeping:
            connection = await self._opener.reach()
            try:
                await keep_items(connection, rows, self._bounds)
            except TROUBLE as error:
                raise StorageUnavailable(f"not kept: {describe(error)}") from error
            finally:
                await close_quietly(connection)
        self._kept.inc(len(rows))

    def _record(self, requests: Sequence[TurnedAway]) -> list[Rejected]:
        budget = Budget(HASHED_BYTES)
        return [self.recorder.record(request, None, budget) for request in requests]

    async def stop(self) -> None:
        """Writes down what waits, if that is soon done."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=STOP_S)
            self._task.cancel()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write(), name="refused")

    async def _write(self) -> None:
        pause_s = PAUSE_S
        while self._replayed or self._waiting:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            replayed, self._replayed = self._replayed, []
            waiting, self._waiting = self._waiting, Waiting()
            self._left_out.inc(waiting.left_out)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if waiting.left_out else PAUSE_S
            await self._write_down(replayed, waiting)

    async def _write_down(self, replayed: list[Refusal], waiting: Waiting) -> None:
        connection = None
        try:
            connection = await self._opener.reach()
            if replayed:
                await note_refusals(connection, replayed)
            if waiting:
                await self._keep(connection, waiting.requests())
        except (StorageUnavailable, *TROUBLE) as error:
            self._lost.inc(len(waiting))
            log.warning("refusals_not_noted", error=describe(error), requests=len(waiting))
        else:
            self._kept.inc(len(waiting))
        finally:
            await close_quietly(connection)

    async def _keep(self, connection: Connection, requests: list[TurnedAway]) -> None:
        is_stale = any(request.code == "STALE_TIMESTAMP" for request in requests)
        clocks = await compare_clocks(connection) if is_stale else None
        rows, budget = [], Budget(HASHED_BYTES)
        for request in requests:
            # One by one: all at once they would hold the interpreter for twenty milliseconds.
            rows.append(await asyncio.to_thread(self.recorder.record, request, clocks, budget))
            await asyncio.sleep(BREATH_S)
        await keep_rejected(connection, rows, self._bounds)
