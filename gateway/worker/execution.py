"""The run of a delivery: open its event, call the handler, decide, settle with the fencing token.

`Execution._run` is the whole path in order. Statistics and traces are hooks around it (hooks.py),
encryption and redaction are in the codec of its lease (codec.py).
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg

from gateway.base.errors import (
    CannotOpen,
    HandlerSignal,
    LeaseLost,
    StorageUnavailable,
    TransactionEnded,
)
from gateway.base.failpoints import reached
from gateway.base.model import Lease, Outcome, Status
from gateway.config.registry import Subscription
from gateway.ledger.connection import MIXED_UP, READ_ONLY, TROUBLE, describe
from gateway.ledger.deliveries import DONE, Settlement, settle
from gateway.ledger.ordering import OrderingKey, advance
from gateway.worker.context import Context, mark_effects, marks_inside, outbox_of, transaction_of
from gateway.worker.hooks import RunReport
from gateway.worker.idempotency import AlreadyDone, KeyInUse, OncePer
from gateway.worker.policy import DECIDED, Failure, HandlerTimeout, decide, is_because
from gateway.worker.resources import WorkerContext
from gateway.worker.transaction import DeliveryTransaction

STOP_S: Final = 5.0
"""How long a cancelled handler may take to end before its connection is closed."""

HAND_BACK_S: Final = 2.0
"""How long a worker that stops waits for Postgres before it lets a lease expire."""

RESETTLE_S: Final = 0.5


class Scheduler:
    """What a run asks of the worker that started it. Here every request is a no-op."""

    def is_more(self) -> bool:
        """Return whether a delivery waits for the next free slot."""
        return False

    def expect(self, delay: timedelta) -> None:
        """Look for due deliveries after this delay."""

    def hint(self, delivery_ids: Iterable[int]) -> None:
        """Wake up for these deliveries, which may be due."""


class Execution:
    """One run of a delivery. It can be stopped until its handler has returned."""

    def __init__(
        self,
        lease: Lease,
        subscription: Subscription,
        worker: WorkerContext,
        scheduler: Scheduler,
    ) -> None:
        self.lease = lease
        self.subscription = subscription
        self._worker = worker
        self._scheduler = scheduler
        self._context = Context(lease=lease, subscription=subscription, worker=worker)
        self._once_per: OncePer | None = None
        self._handler: asyncio.Task[None] | None = None
        self._stopped_because: str | None = None
        self._lease_lost = False

    @property
    def _transaction(self) -> DeliveryTransaction:
        return transaction_of(self._context)

    @property
    def was_stopped(self) -> bool:
        """Whether `stop` was called, so that the delivery is handed back."""
        return self._stopped_because is not None

    def stop(self, because: str) -> None:
        """Cancel the handler and hand the delivery back, without burning an attempt."""
        self._stopped_because = because
        if self._handler is not None:
            self._handler.cancel()

    def lose(self) -> None:
        """Cancel the handler. Another worker owns the delivery, so this run settles nothing."""
        self._lease_lost = True
        self.stop("the lease was lost")

    async def hand_back(self) -> None:
        """Hand the delivery back although its handler has not stopped.

        So a graceful shutdown does not look like a lost worker. The fencing token makes it a no-op
        if the run was settled.
        """
        self._transaction.abandon()
        because = self._stopped_because or "the worker was shut down"
        released = Settlement(status=Status.PENDING, outcome=Outcome.RELEASED, error=because)
        try:
            async with asyncio.timeout(HAND_BACK_S):
                await self._settle_apart(released)
        except (LeaseLost, TimeoutError):
            return

    async def run(self) -> None:
        """Run the handler and settle the delivery. Errors of the handler are never raised."""
        report = RunReport(lease=self.lease, subscription=self.subscription)
        try:
            with self._worker.hooks.around_run(report):
                settlement = await self._run(report)
        finally:
            await self._transaction.close()
        if settlement is not None and settlement.status is Status.PENDING:
            self._scheduler.expect(settlement.delay)
        elif settlement is DONE:
            await self._announce()

    async def _run(self, report: RunReport) -> Settlement | None:
        """Return the settlement, or None if another worker owns the delivery."""
        began_at = time.monotonic()
        try:
            error = await self._prepare() or await self._call(report)
            returned_at = time.monotonic()
            self._check_lease(error)
            error = await (self._complete() if error is None else self._check_failed(error))
            if error is None:
                settlement = DONE
                report.queues = outbox_of(self._context).queues
            else:
                decision = decide(
                    await self._examine(error),
                    attempt=self.lease.attempt,
                    conflicts=self.lease.conflicts,
                    policy=self.subscription.retry,
                    now=datetime.now(UTC),
                )
                settlement = await self._worker.codec.encode(decision, self.lease)
                await self._transaction.close()
                settlement = await self._settle_apart(settlement)
        except LeaseLost:
            self._context.log.warning("lease_lost")
            self._worker.on_repair("fenced")
            return None
        report.settlement = settlement
        report.seconds = time.monotonic() - began_at
        report.settle_s = time.monotonic() - returned_at
        _log_end(self._context, settlement, report.seconds)
        return settlement

    async def _prepare(self) -> BaseException | None:
        """Decode the event, and reserve the `once_per` key, if any.

        Return an error if the handler must not run.
        """
        try:
            lease = await self._worker.codec.decode(self.lease)
            if lease is not self.lease:
                self.lease = lease
                self._context = Context(
                    lease=lease, subscription=self.subscription, worker=self._worker
                )
            if self.subscription.once_per is not None:
                self._once_per = OncePer(
                    lease,
                    self.subscription.once_per,
                    self._worker.ledger,
                    self._worker.codec.encryption,
                )
                await self._once_per.reserve()
        except TROUBLE as error:
            return StorageUnavailable(describe(error))
        except (AlreadyDone, CannotOpen, HandlerSignal, KeyInUse, ValueError) as error:
            return error  # ValueError: the body is not JSON
        return None

    async def _call(self, report: RunReport) -> BaseException | None:
        """Run the handler until it ends, times out or is cancelled. Return its error, if any."""
        began_at = time.monotonic()
        handler = asyncio.create_task(self._guarded())
        self._handler = handler
        if self._stopped_because is not None:
            handler.cancel()
        done, _ = await asyncio.wait({handler}, timeout=self.subscription.timeout.total_seconds())
        report.handler_s = time.monotonic() - began_at
        if not done:
            return await self._overdue(handler)
        if handler.cancelled():
            return asyncio.CancelledError("the handler was cancelled")
        error = handler.exception()
        if error is not None and self.subscription.forward is not None:
            return error.with_traceback(None)  # it shows only our own code
        return error

    async def _guarded(self) -> None:
        reached("handler.starting")
        event, label = self.lease.event, self.subscription.route_label
        if event.route != label:  # handlers see the current name; the gateway uses the identity
            event = replace(event, route=label)
        try:
            await self.subscription.function(event, self._context)
        except SystemExit as error:  # it would end the worker and all its deliveries
            raise RuntimeError(f"the handler called sys.exit({error.code!r})") from error

    async def _overdue(self, handler: asyncio.Task[None]) -> BaseException:
        handler.cancel()
        done, _ = await asyncio.wait({handler}, timeout=STOP_S)
        if not done:
            self._context.log.error("handler_ignores_cancellation")
            self._transaction.abandon()
            handler.add_done_callback(_consume)
        timeout_s = self.subscription.timeout.total_seconds()
        if self.subscription.forward is not None:
            return HandlerTimeout(f"no whole answer within {timeout_s:g} s")
        return HandlerTimeout(f"the handler ran longer than {timeout_s:g} s")

    def _check_lease(self, error: BaseException | None) -> None:
        """End the stoppable part of the run. Raises LeaseLost if another worker owns it."""
        self._handler = None
        reached("handler.returned")
        if self._lease_lost or isinstance(error, LeaseLost):
            raise LeaseLost("another worker owns the delivery")

    async def _complete(self) -> BaseException | None:
        """Commit the handler's writes with the completion. Return the error if that fails."""
        is_inside = marks_inside(self._context)
        if not is_inside and (away := await self._mark_effects()) is not None:
            return away
        if not self._transaction.used and self._once_per is None:
            await self._settle_apart(DONE)
            return None
        try:
            async with asyncio.timeout(self._worker.patience.total_seconds()):
                if is_inside:
                    await mark_effects(self._context)
                if self._once_per is not None:
                    await self._transaction.take_own_role()
                    await self._once_per.keep(self._transaction.run_own)
                await self._transaction.complete(self.lease, chain=self._scheduler.is_more())
                reached("settle.committed")
        except (*TROUBLE, RuntimeError, TransactionEnded) as error:
            if isinstance(error, TimeoutError):
                self._transaction.abandon()
            return error
        return None

    async def _mark_effects(self) -> BaseException | None:
        """List effects whose outcome is still unknown. Return the error if that fails."""
        try:
            await mark_effects(self._context)
        except TROUBLE as error:
            return StorageUnavailable(f"effects of unknown outcome: {describe(error)}")
        return None

    async def _check_failed(self, error: BaseException) -> BaseException:
        """Return the error, or a worse one: that the handler had committed before it failed."""
        if isinstance(error, AlreadyDone):
            return await self._mark_effects() or error
        try:
            await self._transaction.check_transaction()
        except TransactionEnded as ended:
            ended.__cause__ = error
            return ended
        return error

    async def _examine(self, error: BaseException) -> Failure:
        """Find out whether the run failed because of its worker or of the server."""
        if self._stopped_because is not None or isinstance(error, DECIDED):
            return Failure(error=error, stopped_because=self._stopped_because)
        is_away = await self._is_away(error)
        broken = self._transaction.may_have_broken_it
        return Failure(error=error, is_away=is_away, may_have_broken_it=broken)

    async def _is_away(self, error: BaseException) -> bool:
        """Whether the server is unreachable, or is no longer the primary."""
        if is_because(error, READ_ONLY) and await self._transaction.is_read_only():
            self._transaction.give_up()
            return True
        is_away = self._transaction.lost or isinstance(error, StorageUnavailable)
        if is_because(error, MIXED_UP):
            self._transaction.abandon()  # the next delivery must not get this session
        return is_away

    async def _settle_apart(self, settlement: Settlement) -> Settlement:
        """Settle on another connection than the handler's, and retry until Postgres is back.

        The fencing token makes a repeat harmless: if the settlement was committed but its result
        was lost, the repeat finds no lease.
        """
        while True:
            reached("settle.apart")
            try:
                status = await settle(self._worker.ledger, self.lease, settlement)
            except asyncpg.DataError:
                raise
            except TROUBLE as error:
                self._context.log.warning("settle_again", error=describe(error))
                self._worker.on_repair("settle_repeated")
                await self._worker.ledger.expire_connections()
                await asyncio.sleep(RESETTLE_S)
            else:
                reached("settle.settled")
                if status is settlement.status:
                    return settlement
                return Settlement(status=status, outcome=settlement.outcome, error=settlement.error)

    async def _announce(self) -> None:
        """Advance the ordering keys that the commit has freed or filled, and wake workers for its
        jobs.

        It happens after the commit, since the handler's snapshot may be too old to see which
        delivery is next. The sweep does it if this worker is killed before.
        """
        outbox, lease = outbox_of(self._context), self.lease
        turns = list(outbox.turns)
        if lease.order_key is not None:
            turns.append(OrderingKey(lease.event.route, lease.handler, lease.order_key))
        try:
            await advance(self._worker.ledger, turns)
        except TROUBLE as error:
            self._context.log.warning("turns_not_given", error=describe(error))
        if outbox.delivery_ids:
            self._scheduler.hint(outbox.delivery_ids)


def _consume(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _log_end(context: Context, settlement: Settlement, seconds: float) -> None:
    fields = {"outcome": settlement.outcome.value, "ms": round(seconds * 1000, 1)}
    if settlement.outcome is Outcome.DONE:
        context.log.info("delivery_done", **fields)
    elif settlement.outcome is Outcome.SKIPPED:
        context.log.info("delivery_skipped", because=settlement.error, **fields)
    elif settlement.status is Status.DEAD:
        context.log.error("delivery_dead", error=settlement.error, **fields)
    else:
        delay_s = round(settlement.delay.total_seconds(), 1)
        context.log.warning("delivery_again", error=settlement.error, in_s=delay_s, **fields)
