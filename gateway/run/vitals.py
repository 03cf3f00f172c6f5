"""Whether a worker lives, and whether it leases: read by the thread of its port."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from gateway.metrics.pulse import Pulse
from gateway.run.runner import BEATS_PER_LEASE, Runner

ANSWERS_WITHIN_S: Final = 30.0
"""A heartbeat gives Postgres up long before that, and says so."""

LEASES_WITHIN_S: Final = 10.0
MISSED: Final = 3


class Vitals:
    """What can be told of a worker from outside of its event loop."""

    def __init__(
        self,
        *,
        sweep: timedelta,
        lease: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pulse = Pulse(clock)
        self._clock = clock
        self._lease_s = lease.total_seconds()
        self._every_s = max(sweep.total_seconds(), self._lease_s / BEATS_PER_LEASE)
        self._runner: Runner | None = None
        self._parts: Sequence[asyncio.Task[None]] = ()

    def watch(self, runner: Runner, parts: Sequence[asyncio.Task[None]]) -> None:
        """From now on the worker works, and none of its parts may end."""
        self._runner, self._parts = runner, parts

    def stuck(self) -> str | None:
        """Why only a new process helps; None while this one lives. A ledger that is away is no
        reason: the worker waits for it, and so would the next one."""
        if self.pulse.silent_s > self._lease_s:  # by now its deliveries are another's
            return "EVENT_LOOP_STUCK"
        if self._runner is None or not self._runner.is_taking:
            return None
        if any(part.done() for part in self._parts):
            return "PART_ENDED"
        if self._clock() - self._runner.beat_at > self._every_s + ANSWERS_WITHIN_S:
            return "HEARTBEAT_STUCK"
        return None

    def not_ready(self) -> str | None:
        """Why it leases nothing now; None while it does, or has no slot for more."""
        runner = self._runner
        if runner is None:
            return "STARTING"
        if not runner.is_taking:
            return "STOPPING"
        if (reason := self.stuck()) is not None:
            return reason
        late_s = self._every_s * MISSED + LEASES_WITHIN_S
        if runner.asked_at is None or self._clock() - runner.asked_at > late_s:
            return "LEDGER_UNREACHABLE"
        return None
