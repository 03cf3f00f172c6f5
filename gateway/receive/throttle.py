"""How many warnings strangers can cause."""

import time


class Throttle:
    """At most so many a second; counts what it leaves out."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._second = 0
        self._used = 0
        self._left_out = 0

    def allow(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._used = second, 0
        self._used += 1
        if self._used > self._per_second:
            self._left_out += 1
            return False
        return True

    def take_left_out(self) -> int:
        left_out, self._left_out = self._left_out, 0
        return left_out
