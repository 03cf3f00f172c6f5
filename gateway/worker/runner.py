"""Fills a worker's slots with deliveries and keeps their leases alive."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Final
from uuid import UUID

import structlog

from gateway.base.failpoints import reached
from gateway.base.model import Lease
from gateway.config.registry import Subscription
from gateway.ledger.connection import TROUBLE, Pool, describe
from gateway.ledger.deliveries import BEGINS_WITHIN, renew
from gateway.ledger.pauses import find_paused
from gateway.telemetry.metrics import LoopMonitor
from gateway.worker.execution import STOP_S, Execution, Scheduler
from gateway.worker.intake import Intake
from gateway.worker.metrics import WorkerMetrics
from gateway.worker.resources import WorkerContext

AHEAD: Final = timedelta(milliseconds=20)
"""How much work is leased before a slot is free, estimated from the current throughput. With slow
handlers nothing is leased ahead, so that another worker can lease it."""

LONGEST_AHEAD_S: Final = BEGINS_WITHIN.total_seconds()
BEATS_PER_LEASE: Final = 3
TAKE_AGAIN_S: Final = 0.5

log = structlog.get_logger("gateway.run")


class Runner(Scheduler):
    """Runs up to `slots` deliveries concurrently."""

    def __init__(
        self,
        *,
        subscriptions: Iterable[Subscription],
        leases: Pool,
        worker: WorkerContext,
        metrics: WorkerMetrics,
        intake: Intake,
        slots: int,
        most_ahead: int,
        lease: timedelta,
        worker_id: UUID,
    ) -> None:
        self._subscriptions = {s.key: s for s in subscriptions}
        self._leases = leases
        self._worker = worker
        self._metrics = metrics
        self._intake = intake
        self._slots = slots
        self._most_ahead = most_ahead
        self._lease = lease
        self._worker_id = worker_id
        self._ready: deque[tuple[float, Lease]] = deque()
        """Deliveries leased ahead, with the time at which the lease statement was sent."""
        self._ahead = 0
        self._ended_since = 0
        self._looked_at = time.monotonic()
        self._running: dict[int, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._taking = True
        self._leasing = asyncio.Lock()
        """Held while a lease statement is running."""
        self._hurry = asyncio.Event()
        self.asked_at: float | None = None
        """When a statement last succeeded. None if none has yet, or if the last one failed."""
        self.beat_at = time.monotonic()
        """When the last heartbeat ended, with or without success."""

    @property
    def is_taking(self) -> bool:
        """Whether the runner still leases deliveries: shutdown has not begun."""
        return self._taking

    @property
    def busy(self) -> int:
        """The number of slots in use."""
        return len(self._tasks)

    def hint(self, delivery_ids: Iterable[int]) -> None:
        """Wake up for these deliveries, which may be due."""
        self._intake.hint(delivery_ids, self._room)
        self._wake.set()

    def expect(self, delay: timedelta) -> None:
        if delay.total_seconds() < self._intake.scan_every_s:
            asyncio.get_running_loop().call_later(delay.total_seconds(), self.scan_now)

    def scan_now(self) -> None:
        """Wake up and read the ledger, because deliveries may have fallen due."""
        self._intake.scan_now()
        self._wake.set()

    @property
    def _room(self) -> int:
        """How many more deliveries may be leased."""
        return self._slots + self._ahead - len(self._tasks) - len(self._ready)

    @property
    def _free(self) -> int:
        """How many more deliveries could start immediately."""
        return max(self._slots - len(self._tasks) - len(self._ready), 0)

    @property
    def _wants_more(self) -> bool:
        """Whether to lease now. Leasing in batches is cheaper than one by one."""
        return self._room > 0 and len(self._ready) <= self._ahead // 2

    async def take_forever(self) -> None:
        """Lease and start deliveries whenever there is room, until shutdown begins."""
        while self._taking:
            self._wake.clear()
            wait_s = self._intake.wait_s(self._free) if self._wants_more else None
            if wait_s == 0:
                await self._take()
            else:
                await self._sleep(wait_s)

    async def beat_forever(self) -> None:
        """Send heartbeats: one statement keeps all leases of this worker alive."""
        while True:
            await asyncio.sleep(self._lease.total_seconds() / BEATS_PER_LEASE)
            try:
                await self.beat()
                self._note_full()
            except TROUBLE as error:
                log.warning("heartbeat_missed", error=describe(error))
                self._metrics.heartbeats_missed.inc()
                self.asked_at = None
                await self._leases.expire_connections()
            self.beat_at = time.monotonic()

    def _note_full(self) -> None:
        """Let the heartbeat set `asked_at` if no slot is free: no lease statement runs then."""
        if self._room <= 0:
            self.asked_at = time.monotonic()

    async def drain(self, grace: timedelta) -> None:
        """Shut down gracefully.

        Lease nothing more, let running deliveries finish within the grace time, and hand the rest
        back.
        """
        self._taking = False
        self._wake.set()
        if self._tasks:
            log.info("draining", running=len(self._tasks), grace_s=grace.total_seconds())
        self._start_ready()  # hands them back, since _taking is False
        finished = asyncio.create_task(self._all_finished())
        hurried = asyncio.create_task(self._hurry.wait())
        await asyncio.wait(
            {finished, hurried},
            timeout=grace.total_seconds(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        for execution in list(self._running.values()):
            execution.stop("the worker was shut down")
        await asyncio.wait({finished}, timeout=STOP_S)
        stubborn = list(self._running.values())
        for task in (finished, hurried, *self._tasks):
            task.cancel()
        await asyncio.gather(finished, hurried, *self._tasks, return_exceptions=True)
        await asyncio.gather(*(execution.hand_back() for execution in stubborn))

    def hurry(self) -> None:
        """End the grace time."""
        self._hurry.set()

    async def _take(self) -> None:
        self._look_at_pace()
        if self._room <= 0:  # the throughput has fallen
            return
        try:
            await self._take_batches()
        except TROUBLE as error:
            log.warning("ledger_unreachable", error=describe(error))
            self.asked_at = None
            self._intake.ease()
            await self._leases.expire_connections()
            await asyncio.sleep(TAKE_AGAIN_S)

    async def _take_batches(self) -> None:
        taking = self._intake.take(self._room, self._free)
        async with self._leasing, aclosing(taking) as batches:
            asked_at = time.monotonic()
            async for leases in batches:
                self.asked_at = time.monotonic()
                if leases:
                    self._metrics.lease_took(len(leases), self.asked_at - asked_at)
                    reached("lease.taken")
                    await self._accept(leases, asked_at)
                if not self._taking:
                    return
                asked_at = time.monotonic()

    async def _accept(self, leases: list[Lease], asked_at: float) -> None:
        for lease in leases:
            self._intake.hold(lease)
        if time.monotonic() - asked_at > LONGEST_AHEAD_S:
            asked_at = time.monotonic()
            leases = await self._without_paused(leases)
        self._ready.extend((asked_at, lease) for lease in leases)
        self._start_ready()

    async def _without_paused(self, leases: list[Lease]) -> list[Lease]:
        """Hand back the deliveries of handlers that are paused, and return the others.

        A handler may have been paused while the result of a slow lease statement was on its way.
        """
        try:
            paused = await find_paused(self._leases, {lease.handler_key for lease in leases})
        except TROUBLE as error:  # the leases are held all the same
            log.warning("ledger_unreachable", error=describe(error))
            return leases
        for lease in leases:
            if lease.handler_key in paused:
                self._start(lease).stop("it was paused")
        return [lease for lease in leases if lease.handler_key not in paused]

    def is_more(self) -> bool:
        return bool(self._ready)

    def _look_at_pace(self) -> None:
        now = time.monotonic()
        share = AHEAD.total_seconds() / max(now - self._looked_at, 0.001)
        self._ahead = min(int(self._ended_since * share), self._most_ahead)
        self._ended_since, self._looked_at = 0, now

    def _start_ready(self) -> None:
        self._hand_back_late()
        while self._ready and (len(self._tasks) < self._slots or not self._taking):
            self._start(self._ready.popleft()[1])

    def _hand_back_late(self) -> None:
        """Hand back deliveries that were leased ahead and found no free slot in time.

        Another worker may have a free slot. A pause also relies on this limit.
        """
        late = time.monotonic() - LONGEST_AHEAD_S
        while self._ready and self._ready[0][0] < late:
            self._start(self._ready.popleft()[1]).stop("no slot was free in time")

    def _start(self, lease: Lease) -> Execution:
        subscription = self._subscriptions[lease.handler_key]
        execution = Execution(lease, subscription, self._worker, self)
        self._running[lease.delivery_id] = execution
        task = asyncio.create_task(execution.run(), name=f"delivery {lease.delivery_id}")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, execution))
        if not self._taking:
            execution.stop("the worker was shut down")
        return execution

    def _ended(self, task: asyncio.Task[None], execution: Execution) -> None:
        self._tasks.discard(task)
        if self._running.get(execution.lease.delivery_id) is execution:
            del self._running[execution.lease.delivery_id]
        if not execution.was_stopped:  # a delivery handed back does not count for the throughput
            self._ended_since += 1
        self._intake.release(execution.lease)
        self._intake.look_again(execution.subscription)
        self._start_ready()
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("run_failed", delivery_id=execution.lease.delivery_id, error=describe(error))

    async def beat(self) -> None:
        """Send a heartbeat, and stop the runs whose lease was lost.

        An idle worker sends it, too: other workers remove the row of a worker without heartbeats,
        and without its row later heartbeats keep no lease alive.
        """
        self._hand_back_late()
        leases = [*(e.lease for e in self._running.values()), *(lease for _, lease in self._ready)]
        held = await renew(self._leases, leases, self._lease, self._worker_id)
        lost = {lease.token for lease in leases} - held
        for _, lease in self._ready:
            if lease.token in lost:
                self._intake.release(lease)
        self._ready = deque(item for item in self._ready if item[1].token not in lost)
        for execution in self._running.values():
            if execution.lease.token in lost:
                execution.lose()

    async def _all_finished(self) -> None:
        """Wait for all runs and a lease statement in flight: its leases must be handed back."""
        async with self._leasing:
            while self._tasks:
                await asyncio.wait(set(self._tasks))

    async def _sleep(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return


ANSWERS_WITHIN_S: Final = 30.0
"""A heartbeat stops waiting for Postgres long before that, and logs it."""

LEASES_WITHIN_S: Final = 10.0
MISSED: Final = 3


class WorkerHealth:
    """Health checks of a worker that work from outside of its event loop."""

    def __init__(
        self,
        *,
        sweep: timedelta,
        lease: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pulse = LoopMonitor(clock)
        self._clock = clock
        self._lease_s = lease.total_seconds()
        self._every_s = max(sweep.total_seconds(), self._lease_s / BEATS_PER_LEASE)
        self._runner: Runner | None = None
        self._parts: Sequence[asyncio.Task[None]] = ()

    def watch(self, runner: Runner, parts: Sequence[asyncio.Task[None]]) -> None:
        """Start the checks of a running worker, none of whose parts may end from now on."""
        self._runner, self._parts = runner, parts

    def stuck(self) -> str | None:
        """Return why the process must be restarted, or None if it is alive.

        An unreachable ledger is no reason: the worker waits for it, and a new process would do the
        same.
        """
        if self.pulse.silent_s > self._lease_s:  # its leases have expired by now
            return "EVENT_LOOP_STUCK"
        if self._runner is None or not self._runner.is_taking:
            return None
        if any(part.done() for part in self._parts):
            return "PART_ENDED"
        if self._clock() - self._runner.beat_at > self._every_s + ANSWERS_WITHIN_S:
            return "HEARTBEAT_STUCK"
        return None

    def not_ready(self) -> str | None:
        """Return why the worker leases nothing. None if it leases, or if all slots are in use."""
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
