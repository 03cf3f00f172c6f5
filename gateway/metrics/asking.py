"""Asks others only when somebody wants to know, not too often, and never waits for long."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

ASK_EVERY_S: Final = 5.0
"""However often it is wanted: a flood of scrapes costs nobody else anything."""

WAIT_S: Final = 1.0
"""How long a scrape waits for an answer before it tells what is known."""


class Asking:
    """One question, which is asked by one task at a time."""

    def __init__(
        self, ask: Callable[[], Awaitable[None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._asked_at = clock() - ASK_EVERY_S
        self._task: asyncio.Future[None] | None = None

    async def refresh(self) -> None:
        """Returns when the answer is there, or a moment later all the same."""
        if self._task is None or self._task.done():
            if self._clock() - self._asked_at < ASK_EVERY_S:
                return
            self._asked_at = self._clock()
            self._task = asyncio.ensure_future(self._ask())
        await asyncio.wait({self._task}, timeout=WAIT_S)
