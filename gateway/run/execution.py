"""One run of one delivery: the handler under its timeout, then the settlement under its fence."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg
import httpx
import structlog

from gateway.errors import HandlerSignal, LeaseLost
from gateway.failpoints import reached
from gateway.ledger.connection import CONTENDED, TROUBLE, Pool, describe
from gateway.ledger.deliveries import DONE, Settlement, settle
from gateway.ledger.sessions import Sessions
from gateway.model import Lease, Outcome, Status
from gateway.registry import Subscription
from gateway.run.context import Context
from gateway.run.policy import HandlerTimeout, decide, summary

STOP_S: Final = 5.0
"""How long a cancelled handler may take to end before its connection is cut."""

RESETTLE_S: Final = 0.5
AFTER_LOSS: Final = timedelta(seconds=1)

log = structlog.get_logger("gateway.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """What every run of a worker shares."""

    work: Sessions
    """Connections for `ctx.db` and for nothing else."""
    ledger: Pool
    """Connections for settling what `ctx.db` did not."""
    http: httpx.AsyncClient
    patience: timedelta
    """How long a commit may go without an answer before its connection is given up."""
    on_retry: Callable[[timedelta], None]
    """Told when a delivery of ours falls due again."""


class Execution:
    """A delivery being run. It can be asked to stop until its handler has returned."""

    def __init__(
        self,
        lease: Lease,
        subscription: Subscription,
        bench: Workbench,
        *,
        is_more: Callable[[], bool],
    ) -> None:
        self.lease = lease
        self._subscription = subscription
        self._bench = bench
        self._is_more = is_more
        self._context = Context(
            lease=lease, sessions=bench.work, timeout=subscription.timeout, http=bench.http
        )
        self._handler: asyncio.Task[None] | None = None
        self._stopped_because: str | None = None
        self._lease_lost = False

    def stop(self, because: str) -> None:
        """Cancels the handler and gives the delivery back, without burning an attempt."""
        self._stopped_because = because
        if self._handler is not None:
            self._handler.cancel()

    def lose(self) -> None:
        """Cancels the handler: another worker owns the delivery, so this run leaves no trace."""
        self._lease_lost = True
        self.stop("the lease was lost")

    async def run(self) -> None:
        """Runs the handler and settles the delivery; never raises for what the handler did."""
        started = time.monotonic()
        try:
            settlement = await self._finish(await self._call())
        except LeaseLost:
            self._context.log.warning("lease_lost")
            return
        finally:
            await self._context.db.close()
        _report(self._context, settlement, time.monotonic() - started)
        if settlement.status is Status.PENDING:
            self._bench.on_retry(settlement.delay)

    async def _call(self) -> BaseException | None:
        """Runs the handler to its end, its timeout or its cancellation; returns what it raised."""
        handler = asyncio.create_task(self._guarded())
        self._handler = handler
        if self._stopped_because is not None:
            handler.cancel()
        done, _ = await asyncio.wait({handler}, timeout=self._subscription.timeout.total_seconds())
        if not done:
            return await self._overdue(handler)
        if handler.cancelled():
            return asyncio.CancelledError("the handler was cancelled")
        return handler.exception()

    async def _guarded(self) -> None:
        reached("handler.starting")
        try:
            await self._subscription.function(self.lease.event, self._context)
        except SystemExit as error:  # would end the worker and every other delivery in it
            raise RuntimeError(f"the handler called sys.exit({error.code!r})") from error

    async def _overdue(self, handler: asyncio.Task[None]) -> BaseException:
        handler.cancel()
        done, _ = await asyncio.wait({handler}, timeout=STOP_S)
        if not done:
            self._context.log.error("handler_ignores_cancellation")
            self._context.db.abandon()
            handler.add_done_callback(_consume)
        timeout_s = self._subscription.timeout.total_seconds()
        return HandlerTimeout(f"the handler ran longer than {timeout_s:g} s")

    async def _finish(self, error: BaseException | None) -> Settlement:
        self._handler = None
        reached("handler.returned")
        if self._lease_lost:
            raise LeaseLost("another worker owns the delivery")
        if error is None:
            error = await self._complete()
            if error is None:
                return DONE
        settlement = self._judge(error)
        await self._context.db.close()
        return await self._settle_apart(settlement)

    async def _complete(self) -> BaseException | None:
        """Commits effect and completion as one; returns what stood in the way."""
        if not self._context.db.used:
            await self._settle_apart(DONE)
            return None
        try:
            async with asyncio.timeout(self._bench.patience.total_seconds()):
                await self._context.db.complete(self.lease, chain=self._is_more())
                reached("settle.committed")
        except (*TROUBLE, RuntimeError) as error:
            if isinstance(error, TimeoutError):
                self._context.db.abandon()
            return error
        return None

    def _judge(self, error: BaseException) -> Settlement:
        if not isinstance(error, HandlerSignal | HandlerTimeout):
            if self._stopped_because is not None:
                return _again(Outcome.RELEASED, self._stopped_because, timedelta())
            if self._context.db.lost:
                return _again(Outcome.LOST, f"Postgres went away: {summary(error)}", AFTER_LOSS)
            if _is_contention(error):
                return _again(Outcome.LOST, summary(error), AFTER_LOSS)
        return decide(
            error,
            attempt=self.lease.attempt,
            policy=self._subscription.retry,
            now=datetime.now(UTC),
        )

    async def _settle_apart(self, settlement: Settlement) -> Settlement:
        """Settles on a connection of the ledger's own, for as long as Postgres needs to be back.

        The fence makes a repeat harmless: a settlement whose answer got lost finds no lease.
        """
        while True:
            reached("settle.apart")
            try:
                status = await settle(self._bench.ledger, self.lease, settlement)
            except asyncpg.DataError:
                raise
            except TROUBLE as error:
                self._context.log.warning("settle_again", error=describe(error))
                await self._bench.ledger.expire_connections()
                await asyncio.sleep(RESETTLE_S)
            else:
                reached("settle.settled")
                return _with_status(settlement, status)


def _again(outcome: Outcome, because: str, delay: timedelta) -> Settlement:
    """Back to where it waited, without burning an attempt."""
    return Settlement(status=Status.PENDING, outcome=outcome, error=because, delay=delay)


def _is_contention(error: BaseException | None) -> bool:
    """A deadlock or serialization failure, or what the handler made of one."""
    while error is not None:
        if isinstance(error, CONTENDED):
            return True
        error = error.__cause__ or error.__context__
    return False


def _with_status(settlement: Settlement, status: Status) -> Settlement:
    if status is settlement.status:
        return settlement
    return Settlement(status=status, outcome=settlement.outcome, error=settlement.error)


def _consume(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _report(context: Context, settlement: Settlement, seconds: float) -> None:
    fields = {"outcome": settlement.outcome.value, "ms": round(seconds * 1000, 1)}
    if settlement.outcome is Outcome.DONE:
        context.log.info("delivery_done", **fields)
    elif settlement.status is Status.DEAD:
        context.log.error("delivery_dead", error=settlement.error, **fields)
    else:
        delay_s = round(settlement.delay.total_seconds(), 1)
        context.log.warning("delivery_again", error=settlement.error, in_s=delay_s, **fields)
