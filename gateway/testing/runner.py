"""Claim, lease and run deliveries one by one, as `serve` and a worker do, or crash a run."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import asyncpg

from gateway.base.model import Event, Lease
from gateway.base.secrets import Secret
from gateway.config.project import Project
from gateway.config.registry import HandlerFunction, Subscription
from gateway.config.routes import Route
from gateway.ledger.claims import ClaimVerdict
from gateway.ledger.deliveries import event_of, lease_due, lease_hinted, reap, replay
from gateway.ledger.ordering import OrderingKey, advance, keep_policies
from gateway.testing.events import claim_of, envelope_of
from gateway.testing.fixtures import ConnectionNotAllowed, Connections
from gateway.testing.outgoing import Outgoing
from gateway.testing.throwaway import LedgerClients
from gateway.worker.context import Context, transaction_of
from gateway.worker.execution import Execution, Scheduler
from gateway.worker.transaction import DeliveryTransaction


def observe_statements(
    transaction: DeliveryTransaction, observe: Callable[..., Awaitable[Any]]
) -> None:
    """Call `observe(send, method, query, *args)` in place of each statement.

    `method` is the one of asyncpg's connection. Opening and closing a savepoint counts as one
    statement each, too.
    """
    run_own = transaction.run_own

    async def send_own(_: str, query: str, *args: Any) -> asyncpg.Record | None:
        return await run_own(query, *args)

    observed = {
        "send": partial(observe, transaction.send),
        "run_own": partial(observe, send_own, "fetchrow"),
    }
    for name, method in observed.items():
        setattr(transaction, name, method)


Raised = tuple[Exception, TracebackType | None]
"""An exception, with the part of its traceback that starts in the handler."""


@dataclass(slots=True, kw_only=True)
class CrashPoint:
    """The statement of `ctx.db`, or the request of `ctx.http`, after which the run crashes."""

    statements: int | None
    calls: int | None
    is_reached: bool = False
    statements_seen: int = 0
    calls_seen: int = 0

    def see_statement(self) -> bool:
        """Count a statement, and return whether the run crashes after it."""
        self.statements_seen += 1
        return self._reach(self.statements_seen == self.statements)

    def see_call(self) -> bool:
        """Count a request, and return whether the run crashes after it."""
        self.calls_seen += 1
        return self._reach(self.calls_seen == self.calls)

    def see_start(self) -> bool:
        """Return whether the run crashes before its first statement."""
        return self._reach(self.statements == 0)

    def _reach(self, is_here: bool) -> bool:
        self.is_reached = self.is_reached or is_here
        return is_here


class CrashRun:
    """Replaces the handler's function for one run."""

    def __init__(self, function: HandlerFunction, crash: CrashPoint | None) -> None:
        self._function = function
        self._crash = crash
        self.raised: Raised | None = None
        self.died = asyncio.Event()
        self.context: Context | None = None
        self.task: asyncio.Task[Any] | None = None

    async def __call__(self, event: Event, ctx: Context) -> None:
        __tracebackhide__ = True
        self.context, self.task = ctx, asyncio.current_task()
        if self._crash is not None:
            observe_statements(transaction_of(ctx), partial(self._count, self._crash))
            if self._crash.see_start():
                await self._die()
        try:
            await self._function(event, ctx)
        except Exception as error:  # user code may raise any exception
            trace = error.__traceback__
            self.raised = error, None if trace is None else trace.tb_next
            raise

    async def see_call(self) -> None:
        """Count a request, and crash if it is the crash point."""
        if self._crash is not None and self._crash.see_call():
            await self._die()

    async def _count(
        self, crash: CrashPoint, send: Callable[..., Awaitable[Any]], *args: Any, **options: Any
    ) -> Any:
        result = await send(*args, **options)
        if crash.see_statement():
            await self._die()
        return result

    async def _die(self) -> None:
        """Suspend forever, like a killed process: not even a `finally` block runs."""
        self.died.set()
        await asyncio.get_running_loop().create_future()


LEASE: Final = timedelta(days=2)
"""Longer than any handler may run, pauses in a debugger included, because it is never renewed."""
COMMAND_TIMEOUT_S: Final = 60.0
PATIENCE: Final = timedelta(seconds=30)
END_S: Final = 1.0
API_KEY: Final = Secret(b"sk_test_of_a_test")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run: its rows in the ledger, and the exception it raised."""

    row: asyncpg.Record
    published: tuple[Event, ...] = ()
    raised: Raised | None = None
    refused: ConnectionNotAllowed | None = None
    """The error for connections that the handler opened itself, even if it caught the refusal."""


class DeliveryRunner:
    """One database, and everything that is needed to run handlers on it."""

    def __init__(
        self,
        project: Project,
        clients: LedgerClients,
        outgoing: Outgoing,
        resources: Mapping[str, Any],
        connections: Connections,
    ) -> None:
        self._project = project
        self._clients = clients
        self._ledger = clients.ledger
        self._outgoing = outgoing
        self._connections = connections
        self._worker = clients.worker_context(
            project,
            outgoing.client(),
            patience=PATIENCE,
            api_keys={r.name: API_KEY for r in project.config.routes if r.api_key},
            resources=resources,
        )
        self._dying: set[asyncio.Task[Any]] = set()
        self.crash: CrashPoint | None = None
        """The point at which the next run crashes."""

    @classmethod
    async def open(
        cls,
        project: Project,
        url: str,
        outgoing: Outgoing,
        resources: Mapping[str, Any],
        connections: Connections,
    ) -> Self:
        """Connect to the database, and set the policies of its ordering keys."""
        clients = await LedgerClients.open(url, "gateway test", command_timeout_s=COMMAND_TIMEOUT_S)
        turns = [s for s in project.registry.subscriptions if s.turns is not None]
        await keep_policies(clients.ledger, [(s.key, s.on_dead) for s in turns])
        return cls(project, clients, outgoing, resources, connections)

    async def close(self) -> None:
        for task in self._dying:
            task.cancel()
        if self._dying:
            await asyncio.wait(self._dying, timeout=END_S)
        await self._worker.http.aclose()
        await self._clients.close()

    async def claim(self, route: Route, event: Event) -> None:
        """Claim the event as if it was received now.

        An event that was claimed before is a duplicate.
        """
        if not route.wants(envelope_of(event)):
            raise ValueError(
                f"the route {route.name} ignores this event, by its `types` or `livemode`"
            )
        handlers = self._project.registry.for_event(route.name, event.type)
        order_keys = self._project.registry.order_keys(
            route.name, handlers, event.headers, event.body
        )
        claimed = await self._clients.claimer.claim(
            claim_of(event, handlers)._replace(
                received_at=datetime.now(UTC),
                repeats=route.provider.repeat_policy(event.type, route.repeats),
                order_keys=order_keys,
                refuses=partial(route.refuses_repeat, event.type),
            )
        )
        if claimed.verdict is ClaimVerdict.REPEATED_BODY:
            raise ValueError(
                f"the event {event.id} has the body of {claimed.first_event_id}: the route would "
                "refuse it as replayed"
            )
        # The claimer also does this, but only after it has returned its result.
        await advance(
            self._ledger, [OrderingKey(route.name, h, key) for h, key in order_keys.items()]
        )

    async def find(self, subscription: Subscription, event: Event) -> asyncpg.Record:
        """Return the delivery in its current state, with its last attempt."""
        row = await self._ledger.fetchrow(
            "select d.*, a.outcome, a.error as traceback"
            " from gateway.deliveries d"
            " left join gateway.attempts a on a.delivery_id = d.id and a.number = d.runs"
            " where d.route = $1 and d.event_id = $2 and d.handler = $3",
            event.route,
            event.id,
            subscription.handler,
        )
        if row is None:
            raise LookupError(f"{subscription.handler} has no delivery of event {event.id}")
        return row

    async def blocker(self, delivery_id: int) -> asyncpg.Record | None:
        """Return the delivery with the same ordering key that blocks this one, or None."""
        return await self._ledger.fetchrow(
            "select h.id, h.event_id, h.status from gateway.deliveries d"
            " join gateway.deliveries h using (route, handler, order_key)"
            " where d.id = $1 and h.id <> d.id and (h.status = 'dead'"
            "  or h.status in ('pending', 'running') and h.due_at < 'infinity')"
            " order by h.status = 'dead', h.id limit 1",
            delivery_id,
        )

    async def make_due(self, delivery_id: int) -> None:
        """Make the delivery due now.

        Ends the wait for its retry, or expires the lease of a crashed run.
        """
        await self._ledger.execute(
            "update gateway.deliveries set leased_until = now() - interval '1 second'"
            " where id = $1 and status = 'running'",
            delivery_id,
        )
        await reap(self._ledger, 1, timedelta(0))
        await self._ledger.execute(
            "update gateway.deliveries set due_at = now()"
            " where id = $1 and status = 'pending' and due_at < 'infinity'",
            delivery_id,
        )

    async def replay(self, delivery_id: int) -> None:
        await replay(self._ledger, delivery_id, actor="test", reason=None)

    async def lease(self, subscription: Subscription, delivery_id: int) -> Lease | None:
        """Return a lease, or None if the delivery is not due or its ordering key blocks it."""
        leases = await lease_hinted(self._ledger, [delivery_id], [subscription.key], LEASE)
        return leases[0] if leases else None

    async def lease_next(self) -> Lease | None:
        """Lease the delivery that has been due for longest, of any handler, or return None."""
        keys = [subscription.key for subscription in self._project.registry.handlers]
        leases = await lease_due(self._ledger, 1, keys, LEASE)
        return leases[0] if leases else None

    async def run(self, subscription: Subscription, lease: Lease) -> RunResult:
        """Run the handler and settle its delivery, or crash the run if a crash point is set."""
        before = {(event.route, event.id) for event in await self._jobs()}
        run = CrashRun(subscription.function, self.crash)
        self._outgoing.on_call = run.see_call
        self._outgoing.payload = lease.event.payload
        watched = replace(subscription, function=run)
        execution = Execution(lease, watched, self._worker, Scheduler())
        running = asyncio.create_task(execution.run())
        dying = asyncio.create_task(run.died.wait())
        with self._connections.refused():
            await asyncio.wait({running, dying}, return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            if run.died.is_set():
                self._kill(run, running)
            await asyncio.wait({running})
        if not running.cancelled():
            running.result()
        jobs = [event for event in await self._jobs() if (event.route, event.id) not in before]
        row = await self.find(subscription, lease.event)
        refused = self._connections.take_refused()
        return RunResult(row=row, published=tuple(jobs), raised=run.raised, refused=refused)

    def _kill(self, run: CrashRun, running: asyncio.Task[None]) -> None:
        """Cut the connection, settle nothing, and never resume the handler."""
        if run.context is not None:
            transaction_of(run.context).abandon()
        if run.task is not None:
            self._dying.add(run.task)
        running.cancel()

    async def _jobs(self) -> list[Event]:
        if not any(route.provider.is_queue for route in self._project.config.routes):
            return []
        rows = await self._ledger.fetch(
            "select * from gateway.events where provider = 'publish' order by received_at, event_id"
        )
        return [event_of(row) for row in rows]
