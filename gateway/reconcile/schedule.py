"""Runs by the routes' own `every`: one worker at a time, from where the last good one ended."""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final

import structlog

from gateway.errors import GatewayError
from gateway.ledger.bulk import read_clock
from gateway.ledger.connection import TROUBLE, Pool, describe
from gateway.ledger.gaps import forget_gaps
from gateway.ledger.reconciliations import SCHEDULE, Scheduled, find_scheduled, forget_runs
from gateway.ledger.refusals import forget_refusals
from gateway.ledger.sealed import Vault
from gateway.reconcile.orders import Means, begin, carry_out, resume, tell
from gateway.registry import Registry
from gateway.routes import Config, Route

LOOK_S: Final = 10.0
TIDY_S: Final = 3600.0
KEEP_RUNS: Final = timedelta(days=30)

log = structlog.get_logger("gateway.reconcile")


class Schedule:
    """Looks every few seconds whether a route is due."""

    def __init__(
        self,
        ledger: Pool,
        *,
        url: str,
        config: Config,
        registry: Registry,
        vault: Vault,
        hint: Callable[[Iterable[int]], None],
    ) -> None:
        async def wake(delivery_ids: Sequence[int]) -> None:
            hint(delivery_ids)

        self._ledger = ledger
        self._means = Means(url=url, config=config, registry=registry, vault=vault, wake=wake)
        self._longest_key = max((r.retention.key for r in config.routes), default=timedelta(0))
        self._tidied_at = time.monotonic() - TIDY_S

    async def run_forever(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S * random.uniform(0.8, 1.0))  # noqa: S311 (out of step)

    async def look(self) -> None:
        """One round: what is due, one route after the other. A failure waits for the next one."""
        try:
            for route in self._means.config.routes:
                if route.reconcile is not None and route.reconcile.every is not None:
                    await self._look_at(route, route.reconcile.every)
            if time.monotonic() - self._tidied_at >= TIDY_S:
                await self.tidy()
        except TROUBLE as error:
            log.warning("reconcile_delayed", error=describe(error))

    async def tidy(self) -> None:
        """Forgets what nobody needs any more."""
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
        except GatewayError as error:  # mostly: another worker is at it
            log.debug("reconcile_not_begun", route=route.name, reason=describe(error))

    async def _take(self, route: Route, last: Scheduled) -> int:
        """A run that was cut short goes on; one that failed is begun anew."""
        async with self._ledger.acquire() as connection:
            if last.last_status in ("running", "stopped"):
                return await resume(connection, self._means, route.name, last.last_id)
            return await begin(connection, self._means, route.name, actor=SCHEDULE, since=None)
