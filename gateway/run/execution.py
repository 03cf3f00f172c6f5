"""One run of one delivery: the handler under its timeout, then the settlement under its fence."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import asyncpg
import structlog

from gateway.errors import (
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
)
from gateway.failpoints import reached
from gateway.ledger.claims import Verdict
from gateway.ledger.connection import CONTENDED, MIXED_UP, READ_ONLY, TROUBLE, describe
from gateway.ledger.deliveries import DONE, Settlement, settle
from gateway.ledger.sealed import open_event
from gateway.ledger.tallies import REQUESTS
from gateway.ledger.turns import Turn, advance
from gateway.model import Lease, Outcome, Status
from gateway.redaction.hiding import Hide
from gateway.registry import Subscription
from gateway.run.bench import Workbench
from gateway.run.concealment import conceal
from gateway.run.context import Context, finish_effects, outbox_of, transaction_of
from gateway.run.hiding import hiding
from gateway.run.once_per import AtIt, DoneBefore, OncePer
from gateway.run.policy import HandlerTimeout, decide, summary
from gateway.run.transaction import DeliveryTransaction

if TYPE_CHECKING:  # opentelemetry, which is an extra
    from gateway.traces.spans import Traces

STOP_S: Final = 5.0
"""How long a cancelled handler may take to end before its connection is cut."""

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
"""Errors that settle a delivery by themselves, whatever else went wrong in its run."""
RUN_AGAIN: Final = (*CONTENDED, asyncpg.InvalidCachedStatementError)
"""Errors that are not the handler's: another run succeeds. The last one means that a statement
which the driver prepared for an earlier delivery has other columns now (a changed table, another
search_path), and the driver has dropped it."""
AFTER_LOSS: Final = timedelta(seconds=1)
WITHOUT_KEY: Final = timedelta(seconds=30)
"""Until a delivery is tried again whose key this worker has not: another may have it, and a person
has to see to it."""

THREAD_BYTES: Final = 1024 * 1024
"""What is larger is opened in a thread, so that it does not hold up the others."""

log = structlog.get_logger("gateway.run")


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
        """Whether the delivery was to be given back before its handler had ended."""
        return self._stopped_because is not None

    def stop(self, because: str) -> None:
        """Cancels the handler and gives the delivery back, without burning an attempt."""
        self._stopped_because = because
        if self._handler is not None:
            self._handler.cancel()

    def lose(self) -> None:
        """Cancels the handler: another worker owns the delivery, so this run leaves no trace."""
        self._lease_lost = True
        self.stop("the lease was lost")

    async def hand_back(self) -> None:
        """Give the delivery back although its handler has not stopped, so that a graceful shutdown
        is not taken for a lost worker. The fence makes it a no-op if the run was settled."""
        self._transaction.abandon()
        because = self._stopped_because or "the worker was shut down"
        try:
            async with asyncio.timeout(HAND_BACK_S):
                await self._settle_apart(_again(Outcome.RELEASED, because, timedelta()))
        except (LeaseLost, TimeoutError):
            return

    async def run(self) -> None:
        """Runs the handler and settles the delivery; never raises for what the handler did."""
        if self._bench.traces is None:
            await self._run()
        else:
            await self._run_traced(self._bench.traces)

    async def _run_traced(self, traces: "Traces") -> None:
        from gateway.run.traced import running, tell  # opentelemetry

        with running(traces, self.lease) as span:
            tell(span, await self._run())

    async def _run(self) -> Settlement | None:
        """None: another worker owns the delivery."""
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
        self._bench.tallies.add(*place, outcome, seconds)
        metrics.ended(*place, outcome, is_dead=settlement.status is Status.DEAD)
        metrics.took(*place, self._handler_s, settle_s)
        _tell(self._context, settlement, seconds)

    async def _open(self) -> CannotOpen | None:
        """Why the event cannot be read, where it is kept sealed or not kept."""
        lease = self.lease
        if not lease.payload_kept:
            return PayloadGone("its payload is gone: a handler would take nothing for the event")
        if lease.sealed is None:
            return None
        where = self._bench.vault.ring, lease.event.route, lease.event.id, lease.sealed
        try:
            if len(lease.sealed) > THREAD_BYTES:
                headers, body = await asyncio.to_thread(open_event, *where)
            else:
                headers, body = open_event(*where)
        except CannotOpen as error:
            return error
        event = replace(lease.event, headers=headers, body=body)
        self.lease = replace(lease, event=event, sealed=None)
        self._context = self._make_context()  # what it hides in its log lines is in the payload
        return None

    async def _check(self) -> BaseException | None:
        """Where the handler acts once per key: why it is not to be run."""
        if self.subscription.once_per is None:
            return None
        bench = self._bench
        self._once_per = OncePer(self.lease, self.subscription.once_per, bench.ledger, bench.vault)
        try:
            await self._once_per.reserve()
        except TROUBLE as error:
            return StorageUnavailable(describe(error))
        except (
            AtIt,
            DoneBefore,
            HandlerSignal,
            ValueError,
        ) as error:  # or a body no JSON
            return error
        return None

    async def _announce(self) -> None:
        """Advance the ordering keys that the commit has freed or filled, and wake workers for its
        jobs. After the commit, since the handler's snapshot may be too old to see who is next; the
        sweep does it if this worker is killed before."""
        outbox, lease = outbox_of(self._context), self.lease
        for queue in outbox.queues:
            self._bench.tallies.add(queue, REQUESTS, Verdict.ACCEPTED)
            self._bench.metrics.published.labels(queue).inc()
        turns = list(outbox.turns)
        if lease.order_key is not None:
            turns.append(Turn(lease.event.route, lease.handler, lease.order_key))
        try:
            await advance(self._bench.ledger, turns)
        except TROUBLE as error:
            self._context.log.warning("turns_not_given", error=describe(error))
        if outbox.delivery_ids:
            self._bench.on_published(outbox.delivery_ids)

    async def _call(self) -> BaseException | None:
        """Runs the handler to its end, its timeout or its cancellation; returns what it raised."""
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
            await self.subscription.function(self.lease.event, self._context)
        except SystemExit as error:  # would end the worker and every other delivery in it
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

    async def _finish(self, error: BaseException | None) -> Settlement:
        self._handler = None
        reached("handler.returned")
        if self._lease_lost or isinstance(error, LeaseLost):
            raise LeaseLost("another worker owns the delivery")
        if error is None:
            error = await self._complete()
            if error is None:
                return DONE
        else:
            error = await self._check_transaction(error)
        hide = await hiding(self._bench.config, self.lease.event)
        settlement = conceal(await self._judge(error, hide), error, self.lease, self._bench.vault)
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
        """Commits effect and completion as one; returns what stood in the way."""
        try:
            await finish_effects(self._context)
        except StorageUnavailable as error:
            return error
        if not self._transaction.used and self._once_per is None:
            await self._settle_apart(DONE)
            return None
        try:
            async with asyncio.timeout(self._bench.patience.total_seconds()):
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
            error = error.with_traceback(None)  # it leads through our own code, to nowhere of use
        return decide(
            error,
            attempt=self.lease.attempt,
            policy=self.subscription.retry,
            now=datetime.now(UTC),
            hide=hide,
        )

    async def _judge_loss(self, error: BaseException, hide: Hide) -> Settlement | None:
        """Return what becomes of a run that failed through no decision of its handler."""
        if self._stopped_because is not None:
            return _again(Outcome.RELEASED, self._stopped_because, timedelta())
        if await self._is_away(error):
            return _again(Outcome.LOST, f"{AWAY}: {summary(error, hide)}", AFTER_LOSS)
        if _is_because(error, RUN_AGAIN):
            return _again(Outcome.LOST, summary(error, hide), AFTER_LOSS)
        return None

    async def _is_away(self, error: BaseException) -> bool:
        """Whether the server is not there any more, or is no longer the one that is written to."""
        if _is_because(error, READ_ONLY) and await self._transaction.is_read_only():
            self._transaction.give_up()
            return True
        is_away = self._transaction.lost or isinstance(error, StorageUnavailable)
        if _is_because(error, MIXED_UP):
            self._transaction.abandon()  # the next delivery must not get this session
        return is_away

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
                self._bench.metrics.repaired("settle_repeated")
                await self._bench.ledger.expire_connections()
                await asyncio.sleep(RESETTLE_S)
            else:
                reached("settle.settled")
                return _with_status(settlement, status)


def _again(outcome: Outcome, because: str, delay: timedelta) -> Settlement:
    """Back to where it waited, without burning an attempt."""
    return Settlement(status=Status.PENDING, outcome=outcome, error=because, delay=delay)


def _is_because(error: BaseException | None, kinds: tuple[type[Exception], ...]) -> bool:
    """An error of these kinds, or what the handler made of one."""
    while error is not None:
        if isinstance(error, kinds):
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
