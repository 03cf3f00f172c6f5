"""How long the event loop of a process was busy with one thing; told to whoever asks, also from
another thread while it is."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

TICK_S: Final = 0.25
WINDOW_S: Final = 30.0
"""The worst of the last one to two windows is told: a scrape every half minute misses none."""


class Pulse:
    """Beats several times a second, as long as the loop lets it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._expected_at = self._window_at = clock()
        self._worst_s = self._worst_before_s = 0.0

    async def beat_forever(self) -> None:
        """To be run in the loop that is watched."""
        while True:
            self._expected_at = self._clock() + TICK_S
            await asyncio.sleep(TICK_S)
            self.beat()

    def beat(self) -> None:
        """Takes note of how late it is."""
        now = self._clock()
        if now - self._window_at >= WINDOW_S:
            self._worst_before_s, self._worst_s, self._window_at = self._worst_s, 0.0, now
        self._worst_s = max(self._worst_s, now - self._expected_at)

    @property
    def silent_s(self) -> float:
        """For how long the loop has been stuck by now; 0 where it is on time."""
        return max(self._clock() - self._expected_at, 0.0)

    @property
    def lag_s(self) -> float:
        """The longest that it was stuck lately."""
        return max(self._worst_s, self._worst_before_s, self.silent_s)
