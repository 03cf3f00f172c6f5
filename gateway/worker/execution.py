"""One run of a delivery: call the handler with its timeout, then settle with the fencing token."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import asyncpg
import structlog

from gateway.base.errors import (
    CannotOpen,
    HandlerSignal,
    KeyMissing,
    LeaseLost,
    PayloadGone,
    SealBroken,
    StatementRefused,
    StorageUnavailable,
    TransactionEnded,
    TransactionReadOnly,
    causes,
)
from gateway.base.failpoints import reached
from gateway.base.model import Event, Lease, Outcome, RetryPolicy, Status
from gateway.config.registry import Subscription
from gateway.ledger.claims import ClaimVerdict
from gateway.ledger.connection import CONTENDED, MIXED_UP, READ_ONLY, TROUBLE, describe
from gateway.ledger.deliveries import DONE, Settlement, settle
from gateway.ledger.encryption import open_event
from gateway.ledger.ordering import OrderingKey, advance
from gateway.ledger.statistics import REQUESTS
from gateway.privacy.redaction import Hide
from gateway.worker.concealment import conceal, hiding
from gateway.worker.context import Context, mark_effects, marks_inside, outbox_of, transaction_of
from gateway.worker.idempotency import AtIt, DoneBefore, OncePer
from gateway.worker.policy import HandlerTimeout, backoff, decide, summary
from gateway.worker.resources import WorkerContext
from gateway.worker.transaction import DeliveryTransaction

if TYPE_CHECKING:  # opentelemetry, which is an extra
    from gateway.telemetry.spans import Traces

STOP_S: Final = 5.0
"""How long a cancelled handler may take to end before its connection is closed."""

HAND_BACK_S: Final = 2.0
"""How long a worker that stops waits for Postgres before it lets a lease expire."""

RESETTLE_S: Final = 0.5
AWAY: Final = "Postgres went away"
MADE_READ_ONLY: Final = (
    "the handler has made its transaction read only. The completion of its delivery is written in "
    "the same transaction: leave it read write"
)
ENDED_IN_BLOCK: Final = (
    "a procedure or a DO block has tried to end the handler's transaction. Leave the end of the "
    "transaction to the gateway"
)
DECIDED: Final = (HandlerSignal, HandlerTimeout, StatementRefused, TransactionEnded)
"""Errors that alone decide how the delivery is settled, whatever else failed in its run."""
RUN_AGAIN: Final = (
    *CONTENDED,
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)
"""Errors that are not the fault of the handler: another run succeeds. The last two mean that what
the driver knows from an earlier delivery is outdated, the columns of a prepared statement (a
changed table, another search_path) or the attributes of a type, and that the driver has dropped it.
"""
PREPARED_BY_DRIVER: Final = "__asyncpg_"
"""How the names of the statements begin that the driver has prepared."""
AFTER_CONFLICT: Final = RetryPolicy(
    attempts=10, base=timedelta(milliseconds=200), cap=timedelta(seconds=10)
)
"""The backoff after these errors. The waits are random and grow, since handlers that conflicted
would conflict again after equal waits. The tenth conflict in a row burns an attempt, and the
handler's own policy applies: if many handlers update one row, a delivery may lose against others
very often, which must not make it dead."""
AFTER_LOSS: Final = timedelta(seconds=1)
WITHOUT_KEY: Final = timedelta(seconds=30)
"""Wait of a delivery whose encryption key this worker does not have. Another worker may have it, or
an operator has to add it."""

THREAD_BYTES: Final = 1024 * 1024
"""Larger payloads are decrypted in a thread, so that they do not block the event loop."""

log = structlog.get_logger("gateway.run")


class Execution:
    """One run of a delivery. It can be stopped until its handler has returned."""

    def __init__(
        self,
        lease: Lease,
        subscription: Subscription,
        bench: WorkerContext,
        *,
        is_more: Callable[[], bool],
    ) -> None:
        self.lease = lease
        self.subscription = subscription
        self._bench = bench
        self._is_more = is_more
        self._context = self._make_context()
        self._once_per: OncePer | None = None
        self._handler: asyncio.Task[None] | None = None
        self._stopped_because: str | None = None
        self._lease_lost = False
        self._handler_s: float | None = None

    def _make_context(self) -> Context:
        return Context(lease=self.lease, subscription=self.subscription, bench=self._bench)

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
        try:
            async with asyncio.timeout(HAND_BACK_S):
                await self._settle_apart(_again(Outcome.RELEASED, because, timedelta()))
        except (LeaseLost, TimeoutError):
            return

    async def run(self) -> None:
        """Run the handler and settle the delivery. Errors of the handler are never raised."""
        if self._bench.traces is None:
            await self._run()
        else:
            await self._run_traced(self._bench.traces)

    async def _run_traced(self, traces: "Traces") -> None:
        from gateway.worker.traced import running, tell  # opentelemetry

        with running(traces, self.lease, self.subscription) as span:
            tell(span, await self._run())

    async def _run(self) -> Settlement | None:
        """Return the settlement, or None if another worker owns the delivery."""
        started = time.monotonic()
        try:
            error = await self._open() or await self._check() or await self._call()
            returned = time.monotonic()
            settlement = await self._finish(error)
            settled = time.monotonic()
        except LeaseLost:
            self._context.log.warning("lease_lost")
            self._bench.metrics.repaired("fenced")
            return None
        finally:
            await self._transaction.close()
        self._report(settlement, time.monotonic() - started, settled - returned)
        if settlement.status is Status.PENDING:
            self._bench.on_retry(settlement.delay)
        elif settlement is DONE:
            await self._announce()
        return settlement

    def _report(self, settlement: Settlement, seconds: float, settle_s: float) -> None:
        outcome, metrics = settlement.outcome, self._bench.metrics
        place = self.lease.event.route, self.lease.handler
        self._bench.stats.add(*place, outcome, seconds)
        metrics.ended(*place, outcome, is_dead=settlement.status is Status.DEAD)
        metrics.took(*place, self._handler_s, settle_s)
        _tell(self._context, settlement, seconds)

    async def _open(self) -> CannotOpen | None:
        """Decrypt the event if it is encrypted. Return an error if it cannot be read."""
        lease = self.lease
        if not lease.payload_kept:
            return PayloadGone("its payload is gone: a handler would take nothing for the event")
        if lease.sealed is None:
            return None
        where = self._bench.encryption.ring, lease.event.route, lease.event.id, lease.sealed
        try:
            if len(lease.sealed) > THREAD_BYTES:
                headers, body = await asyncio.to_thread(open_event, *where)
            else:
                headers, body = open_event(*where)
        except CannotOpen as error:
            return error
        event = replace(lease.event, headers=headers, body=body)
        self.lease = replace(lease, event=event, sealed=None)
        self._context = self._make_context()  # its logger redacts values of the payload
        return None

    async def _check(self) -> BaseException | None:
        """Reserve the `once_per` key, if any. Return an error if the handler must not run."""
        if self.subscription.once_per is None:
            return None
        bench = self._bench
        self._once_per = OncePer(
            self.lease, self.subscription.once_per, bench.ledger, bench.encryption
        )
        try:
            await self._once_per.reserve()
        except TROUBLE as error:
            return StorageUnavailable(describe(error))
        except (
            AtIt,
            DoneBefore,
            HandlerSignal,
            ValueError,
        ) as error:  # ValueError: the body is not JSON
            return error
        return None

    async def _announce(self) -> None:
        """Advance the ordering keys that the commit has freed or filled, and wake workers for its
        jobs.

        It happens after the commit, since the handler's snapshot may be too old to see which
        delivery is next. The sweep does it if this worker is killed before.
        """
        outbox, lease = outbox_of(self._context), self.lease
        for queue in outbox.queues:
            self._bench.stats.add(queue, REQUESTS, ClaimVerdict.ACCEPTED)
            self._bench.metrics.published.labels(queue).inc()
        turns = list(outbox.turns)
        if lease.order_key is not None:
            turns.append(OrderingKey(lease.event.route, lease.handler, lease.order_key))
        try:
            await advance(self._bench.ledger, turns)
        except TROUBLE as error:
            self._context.log.warning("turns_not_given", error=describe(error))
        if outbox.delivery_ids:
            self._bench.on_published(outbox.delivery_ids)

    async def _call(self) -> BaseException | None:
        """Run the handler until it ends, times out or is cancelled. Return its error, if any."""
        began_at = time.monotonic()
        handler = asyncio.create_task(self._guarded())
        self._handler = handler
        if self._stopped_because is not None:
            handler.cancel()
        done, _ = await asyncio.wait({handler}, timeout=self.subscription.timeout.total_seconds())
        self._handler_s = time.monotonic() - began_at
        if not done:
            return await self._overdue(handler)
        if handler.cancelled():
            return asyncio.CancelledError("the handler was cancelled")
        return handler.exception()

    async def _guarded(self) -> None:
        reached("handler.starting")
        try:
            await self.subscription.function(self._named(self.lease.event), self._context)
        except SystemExit as error:  # it would end the worker and all its deliveries
            raise RuntimeError(f"the handler called sys.exit({error.code!r})") from error

    def _named(self, event: Event) -> Event:
        """Return the event with the current name of its route, for the handler.

        The gateway itself uses the route's identity, which a renaming does not change.
        """
        label = self.subscription.route_label
        return event if event.route == label else replace(event, route=label)

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

    async def _finish(self, error: BaseException | None) -> Settlement:
        self._handler = None
        reached("handler.returned")
        if self._lease_lost or isinstance(error, LeaseLost):
            raise LeaseLost("another worker owns the delivery")
        if error is None:
            error = await self._complete()
            if error is None:
                return DONE
        elif isinstance(error, DoneBefore):
            error = await self._mark_effects() or error
        else:
            error = await self._check_transaction(error)
        hide = await hiding(self._bench.config, self.lease.event)
        settlement = conceal(
            await self._judge(error, hide), error, self.lease, self._bench.encryption
        )
        await self._transaction.close()
        return await self._settle_apart(settlement)

    async def _check_transaction(self, error: BaseException) -> BaseException:
        """Return the error, or a worse one: that the handler had committed before it failed."""
        try:
            await self._transaction.check_transaction()
        except TransactionEnded as ended:
            ended.__cause__ = error
            return ended
        return error

    async def _complete(self) -> BaseException | None:
        """Commit the handler's writes with the completion. Return the error if that fails."""
        is_inside = marks_inside(self._context)
        if not is_inside and (away := await self._mark_effects()) is not None:
            return away
        if not self._transaction.used and self._once_per is None:
            await self._settle_apart(DONE)
            return None
        try:
            async with asyncio.timeout(self._bench.patience.total_seconds()):
                if is_inside:
                    await mark_effects(self._context)
                if self._once_per is not None:
                    await self._transaction.take_own_role()
                    await self._once_per.keep(self._transaction.run_own)
                await self._transaction.complete(self.lease, chain=self._is_more())
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

    async def _judge(self, error: BaseException, hide: Hide) -> Settlement:
        if isinstance(error, DoneBefore):
            return Settlement(status=Status.DONE, outcome=Outcome.SKIPPED, error=str(error))
        if isinstance(error, KeyMissing):
            return _again(Outcome.DEFERRED, summary(error), WITHOUT_KEY)
        if isinstance(error, SealBroken | PayloadGone):
            return Settlement(status=Status.DEAD, outcome=Outcome.DEAD, error=summary(error))
        if isinstance(error, AtIt):
            return _again(Outcome.RELEASED, str(error), AFTER_LOSS)
        if not isinstance(error, DECIDED):
            through_no_fault = await self._judge_loss(error, hide)
            if through_no_fault is not None:
                return through_no_fault
            if isinstance(error, READ_ONLY):  # and the server is not
                error = TransactionReadOnly(f"{error}: {MADE_READ_ONLY}")
            elif isinstance(error, asyncpg.InvalidTransactionTerminationError):
                error = StatementRefused(f"{error}: {ENDED_IN_BLOCK}")
        if self.subscription.forward is not None:
            error = error.with_traceback(None)  # the traceback of a forward shows only our own code
        return decide(
            error,
            attempt=self.lease.attempt,
            policy=self.subscription.retry,
            now=datetime.now(UTC),
            hide=hide,
        )

    async def _judge_loss(self, error: BaseException, hide: Hide) -> Settlement | None:
        """Return the settlement if the run failed through no fault of its handler, or else None."""
        if self._stopped_because is not None:
            return _again(Outcome.RELEASED, self._stopped_because, timedelta())
        if await self._is_away(error):
            is_counted = self._transaction.may_have_broken_it
            outcome = Outcome.LOST if is_counted else Outcome.RELEASED
            return _again(outcome, f"{AWAY}: {summary(error, hide)}", AFTER_LOSS)
        tries = self.lease.conflicts + 1
        may_succeed = _is_because(error, RUN_AGAIN) or _is_of_session(error)
        if may_succeed and tries < AFTER_CONFLICT.attempts:
            delay = backoff(AFTER_CONFLICT, tries)
            return replace(_again(Outcome.LOST, summary(error, hide), delay), is_conflict=True)
        return None

    async def _is_away(self, error: BaseException) -> bool:
        """Whether the server is unreachable, or is no longer the primary."""
        if _is_because(error, READ_ONLY) and await self._transaction.is_read_only():
            self._transaction.give_up()
            return True
        is_away = self._transaction.lost or isinstance(error, StorageUnavailable)
        if _is_because(error, MIXED_UP):
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
                status = await settle(self._bench.ledger, self.lease, settlement)
            except asyncpg.DataError:
                raise
            except TROUBLE as error:
                self._context.log.warning("settle_again", error=describe(error))
                self._bench.metrics.repaired("settle_repeated")
                await self._bench.ledger.expire_connections()
                await asyncio.sleep(RESETTLE_S)
            else:
                reached("settle.settled")
                return _with_status(settlement, status)


def _again(outcome: Outcome, because: str, delay: timedelta) -> Settlement:
    """Return a settlement that makes the delivery pending again, without burning an attempt."""
    return Settlement(status=Status.PENDING, outcome=outcome, error=because, delay=delay)


def _is_because(error: BaseException, kinds: tuple[type[Exception], ...]) -> bool:
    """Return whether the error, or one of its causes, is of these kinds."""
    return any(isinstance(cause, kinds) for cause in causes(error))


def _is_of_session(error: BaseException) -> bool:
    """Return whether a statement of the driver is missing in a session, or is there already.

    Most likely the delivery that had the session before has dropped it: a function can, unseen.
    """
    return any(
        isinstance(cause, MIXED_UP) and PREPARED_BY_DRIVER in str(cause) for cause in causes(error)
    )


def _with_status(settlement: Settlement, status: Status) -> Settlement:
    if status is settlement.status:
        return settlement
    return Settlement(status=status, outcome=settlement.outcome, error=settlement.error)


def _consume(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _tell(context: Context, settlement: Settlement, seconds: float) -> None:
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
