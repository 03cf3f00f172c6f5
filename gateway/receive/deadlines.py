"""The time limits of requests: one timer for all of them, since one each is costly."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

TICK_S: Final = 0.05
"""How late a limit may be noticed."""


class Deadlines:
    """Watches the requests in flight; asleep while there are none."""

    def __init__(self) -> None:
        self._watched: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None

    def within(self, seconds: float, late: Callable[[], Exception]) -> "Deadline":
        """A limit for the body of a `with`: past it, the body is cancelled and `late()` raised."""
        return Deadline(self, seconds, late)

    def watch(self, deadline: "Deadline") -> None:
        self._watched.add(deadline)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def forget(self, deadline: "Deadline") -> None:
        self._watched.discard(deadline)

    def _tick(self) -> None:
        now = time.monotonic()
        for deadline in [d for d in self._watched if d.at <= now]:
            self._watched.discard(deadline)
            deadline.expire()
        self._timer = None
        if self._watched:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)


class Deadline:
    """One request's limit, which moves as the request goes on."""

    __slots__ = ("_cancelling", "_deadlines", "_expired", "_late", "_task", "at")

    def __init__(self, deadlines: Deadlines, seconds: float, late: Callable[[], Exception]) -> None:
        self._deadlines = deadlines
        self._expired = False
        self.move(seconds, late)

    def move(self, seconds: float, late: Callable[[], Exception]) -> None:
        """Starts the clock anew, for the next part of the work."""
        self.at = time.monotonic() + seconds
        self._late = late

    def expire(self) -> None:
        self._expired = True
        self._task.cancel()

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a task that it can cancel")
        self._task, self._cancelling = task, task.cancelling()
        self._deadlines.watch(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._deadlines.forget(self)
        # As in asyncio.timeout: a cancellation that came from elsewhere too is not ours to take.
        if (
            self._expired
            and self._task.uncancel() <= self._cancelling
            and isinstance(error, asyncio.CancelledError)
        ):
            raise self._late() from error
