"""The walk of every long operation: bounded steps from a cursor, retried, paced and resumable.

A step is one commit: its changes, their audit rows and, if the ledger keeps it, the cursor. So a
walk may be killed anywhere, and continues from the last cursor.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, NamedTuple, Self, TypeVar

from gateway.base.errors import CommandFailed
from gateway.ledger.connection import CONTENDED, QUERIES, Executor

TRIES: Final = 20
"""How often a step is retried after lock contention."""

STEPS_PER_S: Final = 4
"""The steps of a walk with a rate: it progresses evenly, and reacts to Ctrl-C soon."""

PIECE_S: Final = 2.0
"""Time limit of one piece, so that no HTTP request runs for minutes."""

EventCursor = tuple[datetime, str, str]
"""The cursor of a walk over events: time of receipt, route and id of the last one."""
FIRST_EVENT: Final[EventCursor] = (datetime(1970, 1, 1, tzinfo=UTC), "", "")

T = TypeVar("T")
C = TypeVar("C")
S = TypeVar("S", bound="Counts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Base of the counts of a step. They add up field by field."""

    def __add__(self, later: Self) -> Self:
        names = (field.name for field in fields(self))
        return type(self)(**{name: getattr(self, name) + getattr(later, name) for name in names})


class Stepped(NamedTuple, Generic[T, C]):
    """The result of a step."""

    done: T
    cursor: C | None
    """The cursor after the last row, or None at the end."""
    rows: int = 0
    """The number of rows that count for the rate."""


class Piece(NamedTuple, Generic[T, C]):
    """The sum of some steps."""

    total: T
    cursor: C | None
    """The cursor of the next piece, or None at the end."""


Step = Callable[[C], Awaitable[Stepped[T, C]]]


def step_rows(rate: int | None, batch: int) -> int:
    """Return how many rows a step may process at a rate per second."""
    return batch if rate is None else max(1, min(batch, rate // STEPS_PER_S))


async def walk(
    step: Step[C, T],
    cursor: C,
    *,
    what: str,
    rate: int | None = None,
    contended: tuple[type[Exception], ...] = CONTENDED,
) -> AsyncGenerator[Stepped[T, C], None]:
    """Step from the cursor to the end, and yield the result of each step.

    Raises CommandFailed if a step meets lock contention again and again.
    """
    pace = Pace()
    while True:
        stepped = await _retry(step, cursor, what, contended)
        if stepped.cursor is not None and rate is not None:
            pace.spend(stepped.rows, rate)
            await pace.wait()  # before the yield: a caller may stop there
        yield stepped
        if stepped.cursor is None:
            return
        cursor = stepped.cursor


async def walk_piece(
    step: Step[C, S],
    cursor: C,
    total: S,
    *,
    what: str,
    rate: int | None = None,
    contended: tuple[type[Exception], ...] = CONTENDED,
) -> Piece[S, C]:
    """Walk for PIECE_S, and return the sum of the steps."""
    ends_s, following = time.monotonic() + PIECE_S, None
    steps = walk(step, cursor, what=what, rate=rate, contended=contended)
    async with aclosing(steps):
        async for stepped in steps:
            total, following = total + stepped.done, stepped.cursor
            if time.monotonic() > ends_s:
                break
    return Piece(total, following)


async def _retry(
    step: Step[C, T], cursor: C, what: str, contended: tuple[type[Exception], ...]
) -> Stepped[T, C]:
    for _ in range(TRIES):
        with suppress(*contended):
            return await step(cursor)
        await asyncio.sleep(random.uniform(0.01, 0.1))  # noqa: S311 (spreads out the retries)
    raise CommandFailed(f"{what} meets lock contention again and again: try it later")


class Pace:
    """Limits the number of rows per second, evenly spaced."""

    def __init__(
        self,
        rest: Callable[[float], Awaitable[object]] = asyncio.sleep,
        *,
        catch_up_s: float = 1.0,
    ) -> None:
        self._rest = rest
        self._catch_up_s = catch_up_s
        self._free_s = time.monotonic()

    async def wait(self) -> None:
        """Wait until the rate allows more rows."""
        wait_s = self._free_s - time.monotonic()
        if wait_s > 0:
            await self._rest(wait_s)

    def spend(self, rows: int, rate: float) -> None:
        """Count rows for the rate. A delay of up to `catch_up_s` is made up for."""
        now_s = time.monotonic()
        self._free_s = max(self._free_s, now_s - self._catch_up_s) + rows / rate


async def delete_all(connection: Executor, query: str, age: timedelta, batch: int) -> int:
    """Delete rows older than `age` and return their number. Each batch is a commit of its own."""
    total, deleted = 0, batch
    while deleted == batch:
        status = await connection.execute(QUERIES[query], age, batch)
        deleted = int(status.rpartition(" ")[2])
        total += deleted
    return total
