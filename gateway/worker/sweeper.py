"""Periodic work of every worker: heartbeat, expired leases, ordering keys, retention."""

import asyncio
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from importlib.metadata import version
from typing import Final
from uuid import UUID

import structlog

from gateway.base.failpoints import reached
from gateway.base.model import HandlerKey, Outcome, Retention, Status
from gateway.ledger.causes import CauseGrouper
from gateway.ledger.connection import QUERIES, TROUBLE, Pool, describe
from gateway.ledger.deliveries import reap
from gateway.ledger.ordering import StuckKeys
from gateway.ledger.partitions import UNHURRIED
from gateway.ledger.partitions import tend as tend_partitions
from gateway.ledger.rejected import forget_rejected
from gateway.ledger.retention import Pruned, Pruner
from gateway.ledger.statistics import MinuteStats
from gateway.worker.metrics import WorkerMetrics

REAP_LIMIT: Final = 200
LEAVE_S: Final = 1.0
CLOCKS_DRIFT: Final = timedelta(seconds=1)
"""A clock that is set back by less than this is not reported."""

FORGET_EVERY_S: Final = 600.0
TEND_EVERY_S: Final = 300.0

VERSION: Final = version("webhook-gateway-server")
MISSED_ROUNDS: Final = 6
"""A worker that misses this many rounds is no longer listed."""

log = structlog.get_logger("gateway.sweep")


class Sweeper:
    """Repairs what killed processes leave behind, and deletes expired data."""

    def __init__(
        self,
        ledger: Pool,
        *,
        pruner: Pruner,
        retention: Mapping[str, Retention],
        rejected: timedelta,
        handlers: Sequence[HandlerKey],
        turns: StuckKeys,
        stats: MinuteStats,
        metrics: WorkerMetrics,
        every: timedelta,
        lease: timedelta,
        worker_id: UUID,
        isolated: bool,
        renew: Callable[[], Awaitable[None]],
        on_due: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._pruner = pruner
        self._retention = retention
        self._tended_at = -TEND_EVERY_S
        self._rejected = rejected
        self._forgot_at = -FORGET_EVERY_S
        self._turns = turns
        self._stats = stats
        self._metrics = metrics
        self._handlers = [f"{route} {handler}" for route, handler in handlers]
        self._every = every
        self._lease = lease
        self._renew = renew
        self._on_due = on_due
        self._worker_id = worker_id
        self._isolated = isolated
        self._causes = CauseGrouper()

    async def sweep_forever(self) -> None:
        """Sweep, prune and tend partitions in separate tasks: a long prune delays no sweep."""
        tasks = [
            asyncio.create_task(self._repeat(self.sweep, "sweep_failed")),
            asyncio.create_task(self._repeat(self.prune, "prune_failed")),
            asyncio.create_task(self._repeat(self.tend, "tend_failed")),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _repeat(self, work: Callable[[], Awaitable[None]], failed: str) -> None:
        """Repeat the work at intervals with jitter, so that workers do not run in step."""
        while True:
            try:
                await work()
            except TROUBLE as error:
                log.warning(failed, error=describe(error))
                await self._ledger.expire_connections()
            await asyncio.sleep(self._every.total_seconds() * random.uniform(0.8, 1.0))  # noqa: S311

    async def sweep(self) -> None:
        """Run one bounded round."""
        set_back = await self._say_alive()
        reached("sweep.alive")
        if set_back > CLOCKS_DRIFT:
            await self._follow_clock(set_back)
        # before reaping: after an outage this worker's own leases look expired, too
        await self._renew()
        reached("sweep.renewed")
        await self._reap()
        await self._give_turns()
        await self._causes.keep(self._ledger)

    async def prune(self) -> None:
        """Prune until there is no expired data left.

        It pauses after each step for as long as the step took, so that it takes half of one
        connection at most.
        """
        await self._forget_rejected()
        total, told_at, is_behind = Pruned(), time.monotonic(), True
        while is_behind:
            began_at = time.monotonic()
            async with self._ledger.acquire() as connection:
                step = await self._pruner.step(connection)
            self._note_pruned(step)
            total, is_behind, now = total + step, self._pruner.is_behind, time.monotonic()
            if not is_behind or now - told_at > self._every.total_seconds():
                _tell(total)
                total, told_at = Pruned(), now
            if is_behind:
                await asyncio.sleep(now - began_at)

    def _note_pruned(self, step: Pruned) -> None:
        self._metrics.prune_steps.inc()
        for what, rows in _counts(step).items():
            self._metrics.pruned.labels(what).inc(rows)

    async def _forget_rejected(self) -> None:
        """Delete old rejected requests."""
        if time.monotonic() - self._forgot_at >= FORGET_EVERY_S:
            await forget_rejected(self._ledger, self._rejected)
            self._forgot_at = time.monotonic()

    async def tend(self) -> None:
        """Create the partitions of the next days, and drop the expired ones."""
        if time.monotonic() - self._tended_at >= TEND_EVERY_S:
            async with self._ledger.acquire() as connection:
                tended = await tend_partitions(connection, self._retention, bytes_per_s=UNHURRIED)
            if tended.refiled or tended.dropped or tended.waiting:
                log.info("partitions_tended", **asdict(tended))
            self._metrics.pruned.labels("days").inc(tended.dropped)
            self._tended_at = time.monotonic()

    async def leave(self) -> None:
        """Remove this worker from the list of workers."""
        leaving = asyncio.ensure_future(self._ledger.execute(QUERIES["leave"], self._worker_id))
        await asyncio.wait({leaving}, timeout=LEAVE_S)
        if not leaving.done():
            leaving.cancel()
        elif leaving.exception() is not None:
            log.warning("leave_failed")

    async def _say_alive(self) -> timedelta:
        set_back: timedelta = await self._ledger.fetchval(
            QUERIES["alive"],
            self._worker_id,
            socket.gethostname(),
            os.getpid(),
            self._handlers,
            self._every * MISSED_ROUNDS,
            VERSION,
            self._isolated,
        )
        return set_back

    async def _follow_clock(self, set_back: timedelta) -> None:
        moved = await self._ledger.fetchval(QUERIES["set_back"], set_back, self._lease)
        log.warning("clock_set_back", by_s=set_back.total_seconds(), deliveries=moved)
        self._metrics.repaired("clock_set_back", moved)
        self._on_due()

    async def _give_turns(self) -> None:
        """Advance ordering keys that a killed process has not advanced."""
        freed = await self._turns.free(self._ledger)
        if freed:
            log.warning("turns_given", delivery_ids=freed)
            self._metrics.repaired("turn_given", len(freed))
            self._on_due()

    async def _reap(self) -> None:
        reaped = await reap(self._ledger, REAP_LIMIT, self._lease)
        reached("sweep.reaped")
        for row in reaped:
            key, is_dead = (row["route"], row["handler"]), row["status"] == Status.DEAD
            self._stats.add(*key, Outcome.LOST)
            self._metrics.ended(*key, Outcome.LOST, is_dead=is_dead)
            self._metrics.repaired("lease_expired")
            log.warning(
                "lease_taken_back",
                route=row["route"],
                event_id=row["event_id"],
                delivery_id=row["id"],
                handler=row["handler"],
                status=row["status"],
            )
        if reaped:
            self._on_due()


def _counts(pruned: Pruned) -> dict[str, int]:
    return {
        "keys": pruned.keys,
        "payloads": pruned.payloads,
        "dead": pruned.dead,
        "audit": pruned.audit,
    }


def _tell(pruned: Pruned) -> None:
    counts = _counts(pruned)
    if any(counts.values()):
        log.info("pruned", **counts)
