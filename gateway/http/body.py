"""Read a request body within its limits of size and time."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from starlette.types import Receive

from gateway.base.errors import Overloaded, TooLarge
from gateway.http.admission import AdmissionSlot

TICK_S: Final = 0.05
"""How late an expired deadline may be noticed."""


class Deadlines:
    """Watch the deadlines of the requests in flight. No timer runs while there are none."""

    def __init__(self) -> None:
        self._watched: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None

    def within(self, seconds: float, late: Callable[[], Exception]) -> "Deadline":
        """Return a context manager that cancels its body after `seconds` and raises `late()`."""
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
    """The time limit of one request, which can be moved as the request proceeds."""

    __slots__ = ("_cancelling", "_deadlines", "_expired", "_late", "_task", "at")

    def __init__(self, deadlines: Deadlines, seconds: float, late: Callable[[], Exception]) -> None:
        self._deadlines = deadlines
        self._expired = False
        self.move(seconds, late)

    def move(self, seconds: float, late: Callable[[], Exception]) -> None:
        """Restart the time limit for the next step of the request."""
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
        # As in asyncio.timeout: if the task was also cancelled from elsewhere, that cancellation
        # must propagate.
        if (
            self._expired
            and self._task.uncancel() <= self._cancelling
            and isinstance(error, asyncio.CancelledError)
        ):
            raise self._late() from error


DRAIN_BYTES: Final = 1024 * 1024
"""How many bytes of a rejected body are read and discarded.

A connection that is closed with unread bytes is reset, so a sender that was only slightly over the
limit would never see the response.
"""
DRAIN_S: Final = 2.0


class SenderGone(Exception):
    """The sender closed the connection before its body was complete."""


async def read_body(
    headers: Mapping[str, str], receive: Receive, slot: AdmissionSlot, *, limit: int
) -> bytes:
    """Return the whole body. Raises TooLarge if its announced or actual size is over the limit."""
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        if int(announced[:20]) <= limit + DRAIN_BYTES:
            await _discard(receive, limit + DRAIN_BYTES)  # within the request's time limit
        raise TooLarge(f"announced {announced[:20]} bytes; at most {limit} are taken")
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            if message.get("shed"):  # by our server, which has answered 503
                raise Overloaded("one of the slowest of too many arriving bodies")
            raise SenderGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            if message.get("more_body", False):
                await drain(receive)
            raise TooLarge(f"more than {limit} bytes")
        slot.hold(len(chunk))
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def drain(receive: Receive) -> None:
    """Read and discard the body of a request that is about to be rejected."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            await _discard(receive, DRAIN_BYTES)


async def _discard(receive: Receive, at_most: int) -> None:
    while at_most > 0:
        message = await receive()
        at_most -= len(message.get("body", b""))
        if not message.get("more_body", False):
            return
