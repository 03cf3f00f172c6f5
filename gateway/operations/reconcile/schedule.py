"""Scheduled runs at the interval `every` of a route.

Each begins where the last successful one ended.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final

import structlog

from gateway.base.errors import GatewayError
from gateway.config.registry import Registry
from gateway.config.routes import Config, Route
from gateway.ledger.bulk import read_clock
from gateway.ledger.connection import TROUBLE, Pool, describe
from gateway.ledger.encryption import EncryptionKeys
from gateway.ledger.reconciliations import (
    SCHEDULE,
    Scheduled,
    find_scheduled,
    forget_gaps,
    forget_runs,
)
from gateway.ledger.rejected import forget_refusals
from gateway.operations.reconcile.runs import ReconcileContext, begin, carry_out, resume, tell

LOOK_S: Final = 10.0
TIDY_S: Final = 3600.0
KEEP_RUNS: Final = timedelta(days=30)

log = structlog.get_logger("gateway.reconcile")


class Schedule:
    """Checks regularly whether a run is due."""

    def __init__(
        self,
        ledger: Pool,
        *,
        url: str,
        config: Config,
        registry: Registry,
        encryption: EncryptionKeys,
        hint: Callable[[Iterable[int]], None],
    ) -> None:
        async def wake(delivery_ids: Sequence[int]) -> None:
            hint(delivery_ids)

        self._ledger = ledger
        self._means = ReconcileContext(
            url=url, config=config, registry=registry, encryption=encryption, wake=wake
        )
        self._longest_key = max((r.retention.key for r in config.routes), default=timedelta(0))
        self._tidied_at = time.monotonic() - TIDY_S

    async def run_forever(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S * random.uniform(0.8, 1.0))  # noqa: S311 (jitter)

    async def look(self) -> None:
        """Run the routes that are due, one after the other.

        A failed run is retried in the next round.
        """
        try:
            for route in self._means.config.routes:
                if route.reconcile is not None and route.reconcile.every is not None:
                    await self._look_at(route, route.reconcile.every)
            if time.monotonic() - self._tidied_at >= TIDY_S:
                await self.tidy()
        except TROUBLE as error:
            log.warning("reconcile_delayed", error=describe(error))

    async def tidy(self) -> None:
        """Delete old runs, old gaps and old ids of refused events."""
        self._tidied_at = time.monotonic()
        await forget_runs(self._ledger, KEEP_RUNS)
        await forget_gaps(self._ledger, KEEP_RUNS)
        await forget_refusals(self._ledger, self._longest_key)

    async def _look_at(self, route: Route, every: timedelta) -> None:
        last = await find_scheduled(self._ledger, route.name)
        now = await read_clock(self._ledger, None)
        if last.finished_at is not None and now < last.finished_at + every:
            return
        try:
            id = await self._take(route, last)
            tell(await carry_out(self._means, id))
        except GatewayError as error:  # usually: another worker runs it
            log.debug("reconcile_not_begun", route=route.name, reason=describe(error))

    async def _take(self, route: Route, last: Scheduled) -> int:
        """Resume a run that was interrupted, or begin a new one."""
        async with self._ledger.acquire() as connection:
            if last.last_status in ("running", "stopped"):
                return await resume(connection, self._means, route.name, last.last_id)
            return await begin(connection, self._means, route.name, actor=SCHEDULE, since=None)
