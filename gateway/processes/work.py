"""The composition root of a worker: everything it consists of, in the order in which it starts.

It stops in reverse order. It does not depend on Redis.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import httpx
import structlog

from gateway.base.model import HandlerKey
from gateway.config.project import Project, database_url
from gateway.config.settings import Settings
from gateway.http.client_address import Addresses
from gateway.http.limits import Limiters
from gateway.http.outbound import OutboundClient
from gateway.ledger.budget import (
    ISOLATED_POOL,
    LEASE_CONNECTIONS,
    LEDGER_CONNECTIONS,
    handler_connections,
    warn_of_shortage,
    worker_connections,
)
from gateway.ledger.connection import (
    COMMAND_TIMEOUT_S,
    PREPARED_ONCE,
    TROUBLE,
    Pool,
    connect,
    describe,
    durable_settings,
    open_pool,
    users_search_path,
)
from gateway.ledger.deliveries import find_suspects, keep_places
from gateway.ledger.encryption import vault_of
from gateway.ledger.migrate import check_version
from gateway.ledger.names import settle_names
from gateway.ledger.ordering import StuckKeys, keep_policies
from gateway.ledger.retention import Pruner
from gateway.ledger.sessions import Sessions
from gateway.ledger.statistics import MinuteStats, StatsWriter
from gateway.operations.alerts.sender import AlertSender
from gateway.operations.reconcile.schedule import Schedule
from gateway.processes.probes import Port, Probes
from gateway.receive.guard import TokenGuard, metrics_guard
from gateway.telemetry.logs import show_names
from gateway.telemetry.traces import open_traces
from gateway.worker.codec import LeaseCodec
from gateway.worker.forward import Forwarder
from gateway.worker.hooks import Hooks, counting_runs, nested
from gateway.worker.intake import HeldBytes, Intake
from gateway.worker.isolated import IsolatedWorker
from gateway.worker.metrics import WorkerMetrics
from gateway.worker.resources import OpenResources, WorkerContext
from gateway.worker.runner import Runner, WorkerHealth
from gateway.worker.sweeper import MISSED_ROUNDS, Sweeper

LEDGER_COMMAND_S: Final = 10.0
CLOSE_S: Final = 2.0
ISOLATED: Final = {"concurrency": 1, "handler_connections": 1, "worker_port": None}
"""Settings of an isolated worker, which replace those of its parent worker."""

log = structlog.get_logger("gateway.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A running worker. It is faster with wake-ups, but does not need them."""

    ledger: Pool
    runner: Runner
    sweeper: Sweeper
    metrics: WorkerMetrics
    isolated: IsolatedWorker | None
    """Runs suspects in another process; None in that process itself."""
    handlers: list[HandlerKey]
    every: timedelta
    tasks: tuple[asyncio.Task[None], ...]
    stack: AsyncExitStack

    def hint(self, delivery_ids: Iterable[int]) -> None:
        """Wake up the worker: these deliveries may be due."""
        self.runner.hint(delivery_ids)

    async def wait_idle(self) -> None:
        """Return when an isolated worker runs nothing and no suspect is due."""
        while True:
            await asyncio.sleep(self.every.total_seconds())
            if self.runner.busy:
                continue
            try:
                if not await find_suspects(self.ledger, self.handlers):
                    return
            except TROUBLE as error:
                log.warning("suspects_unknown", error=describe(error))

    async def wait_failed(self) -> None:
        """Raise the error of a part of the worker that ended unexpectedly.

        Never returns otherwise.
        """
        done, _ = await asyncio.wait(self.tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Stop gracefully.

        The worker takes no new deliveries, lets the running ones finish within the grace time, and
        hands back the rest.
        """
        await self.stack.aclose()
        log.info("worker_stopped")

    def hurry(self) -> None:
        """End the grace time of a stop in progress."""
        self.runner.hurry()
        if self.isolated is not None:
            self.isolated.hurry()


async def start_worker(project: Project, *, isolated: bool = False) -> Worker:
    """Check the ledger and start to work. After the start it waits out outages of Postgres.

    An isolated worker runs only suspects, one at a time, for the worker that started its process.
    """
    settings = project.settings.model_copy(update=ISOLATED if isolated else {})
    async with AsyncExitStack() as stack:
        # Health and metrics: the port answers from here on.
        metrics, stats = WorkerMetrics(), MinuteStats()
        health = WorkerHealth(sweep=settings.sweep, lease=settings.lease)
        _background(stack, health.pulse.beat_forever(), "pulse")
        _open_port(stack, settings, health, metrics)

        # The ledger: its version, the identities of names, the policies of handlers.
        pushing = OutboundClient(most_connections=settings.concurrency)
        stack.push_async_callback(pushing.aclose)
        project, search_path, durable = await _check_ledger(project, settings, metrics)
        forwarder = Forwarder(pushing, project.destinations)
        subscriptions = tuple(map(forwarder.bind, project.registry.subscriptions))
        handlers = [s.key for s in subscriptions]
        metrics.expect(handlers)

        # What runs share.
        pools = _Pools(stack, settings, metrics, isolated=isolated)
        ledger = await pools.open(
            "ledger", LEDGER_CONNECTIONS, command_timeout_s=LEDGER_COMMAND_S, **durable
        )
        sessions = pools.open_sessions(search_path=search_path, **durable)
        context = await _open_context(stack, project, settings, ledger, sessions, metrics, stats)
        keeper = StatsWriter(stats, ledger=ledger, every=settings.sweep)
        keeper.start()
        stack.push_async_callback(keeper.stop)

        # Deliveries: a lease need not survive a crash, because its token is the fence.
        leases = await pools.open(
            "leases",
            LEASE_CONNECTIONS,
            command_timeout_s=COMMAND_TIMEOUT_S,
            synchronous_commit="off",
        )
        worker_id = uuid4()
        intake = Intake(
            leases,
            subscriptions=subscriptions,
            lease=settings.lease,
            scan_every=settings.sweep,
            held=HeldBytes(settings.max_leased, slots=settings.concurrency),
            suspects=isolated,
            metrics=metrics,
        )
        runner = Runner(
            subscriptions=subscriptions,
            leases=leases,
            worker=context,
            metrics=metrics,
            intake=intake,
            slots=settings.concurrency,
            most_ahead=0 if isolated else settings.concurrency,
            lease=settings.lease,
            worker_id=worker_id,
        )
        metrics.watch_slots(settings.concurrency, lambda: runner.busy)
        sweeper = Sweeper(
            ledger,
            pruner=Pruner(project.config.retention, audit=settings.audit_retention),
            retention=project.config.retention,
            rejected=settings.rejected_retention,
            handlers=handlers,
            turns=StuckKeys(),
            stats=stats,
            metrics=metrics,
            every=settings.sweep,
            lease=settings.lease,
            worker_id=worker_id,
            isolated=isolated,
            renew=runner.beat,
            on_due=runner.scan_now,
        )
        stack.push_async_callback(sweeper.leave)

        # Background tasks: none of them may end before the worker stops.
        work = {
            "take": runner.take_forever(),
            "beat": runner.beat_forever(),
            "sweep": sweeper.sweep_forever(),
        }
        supervisor = None
        if not isolated:
            supervisor = IsolatedWorker(ledger, handlers=handlers, every=settings.sweep)
            work |= {
                "alerts": _alert_sender(project, ledger).tell_forever(),
                "reconcile": _schedule(project, ledger, runner.hint).run_forever(),
                "isolate": supervisor.supervise_forever(),
            }
        tasks = tuple(_background(stack, part, name) for name, part in work.items())
        health.watch(runner, tasks)
        stack.push_async_callback(_drain, runner, supervisor, settings.grace)
        log.info("worker_started", handlers=len(handlers), slots=settings.concurrency)
        return Worker(
            ledger=ledger,
            runner=runner,
            sweeper=sweeper,
            metrics=metrics,
            isolated=supervisor,
            handlers=handlers,
            every=settings.sweep,
            tasks=tasks,
            stack=stack.pop_all(),
        )


def _background(
    stack: AsyncExitStack, work: Coroutine[Any, Any, None], name: str
) -> asyncio.Task[None]:
    """Run the work in a task that is cancelled when the stack is closed."""
    task = asyncio.create_task(work, name=name)

    async def cancel() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(cancel)
    return task


def _open_port(
    stack: AsyncExitStack, settings: Settings, health: WorkerHealth, metrics: WorkerMetrics
) -> None:
    """Open the HTTP port of the worker, if one is configured."""
    metrics.watch_loop(health.pulse)
    metrics.watch_ledger(database_url(settings), lately=settings.sweep * MISSED_ROUNDS)
    if settings.worker_port is None:
        return
    limiters = Limiters(Addresses(settings.trusted_proxies), settings.refused_rate)
    guard = TokenGuard(limiters, metrics.admin_refused)

    def app() -> Probes:
        return Probes(
            stuck=health.stuck,
            not_ready=health.not_ready,
            metrics=metrics.show,
            guard=metrics_guard(settings, guard),
        )

    port = Port(settings.host, settings.worker_port, app)
    port.start()
    stack.callback(port.stop)


async def _check_ledger(
    project: Project, settings: Settings, metrics: WorkerMetrics
) -> tuple[Project, str, dict[str, str]]:
    """Check the version of the ledger, and announce the handlers to it.

    Return the project with the identities of routes and handlers, the search path for handlers, and
    the settings of sessions whose commits survive a crash.
    """
    connection = await connect(database_url(settings), name="gateway worker")
    try:
        await check_version(connection)
        names = await settle_names(connection, project.declared_names())
        project = project.identified(names)
        metrics.names = names
        show_names(names)
        handlers = project.registry.subscriptions
        await keep_policies(connection, [(s.key, s.on_dead) for s in handlers])
        for subscription in handlers:
            if subscription.rate is not None:
                await keep_places(connection, subscription.key, subscription.rate.count)
        search_path = await users_search_path(connection)
        durable = await durable_settings(connection)
        await warn_of_shortage(connection, worker_connections(settings))
    finally:
        await connection.close()
    return project, search_path, dict(durable)


class _Pools:
    """Opens connection pools, watches them, and closes them with the stack."""

    def __init__(
        self, stack: AsyncExitStack, settings: Settings, metrics: WorkerMetrics, *, isolated: bool
    ) -> None:
        self._stack = stack
        self._url = database_url(settings)
        self._most = handler_connections(settings)
        self._metrics = metrics
        self._is_isolated = isolated

    async def open(
        self, name: str, size: int, *, command_timeout_s: float, **server_settings: str
    ) -> Pool:
        pool = await open_pool(
            self._url,
            name=f"gateway worker {name}",
            size=min(size, ISOLATED_POOL) if self._is_isolated else size,
            command_timeout_s=command_timeout_s,
            **PREPARED_ONCE,
            **server_settings,
        )
        self._stack.push_async_callback(_close, pool)
        self._metrics.watch_pool(name, pool)
        return pool

    def open_sessions(self, *, search_path: str, **server_settings: str) -> Sessions:
        """Return the connections for handlers."""
        sessions = Sessions(
            self._url,
            name="gateway worker handlers",
            most=self._most,
            search_path=search_path,
            **server_settings,
        )
        self._stack.push_async_callback(sessions.close)
        self._metrics.watch_connections("handlers", lambda: (*sessions.use, self._most))
        return sessions


async def _open_context(
    stack: AsyncExitStack,
    project: Project,
    settings: Settings,
    ledger: Pool,
    sessions: Sessions,
    metrics: WorkerMetrics,
    stats: MinuteStats,
) -> WorkerContext:
    """Open the resources and the HTTP client, and hook statistics and traces to the runs."""
    opening = OpenResources(project.registry.resources)
    resources = await opening.open()
    stack.push_async_callback(opening.close)
    codec = LeaseCodec(project.config, vault_of(project.config, project.ring))
    timeout = httpx.Timeout(30, connect=5)
    count = counting_runs(stats, metrics)
    traces = open_traces(on=settings.traces == "on", process="worker")
    if traces is None:
        http, hooks = httpx.AsyncClient(timeout=timeout), Hooks(around_run=count)
    else:
        from gateway.worker.traced import TracedClient, TracedRuns  # opentelemetry

        stack.push_async_callback(traces.close)
        http = TracedClient(traces, timeout=timeout)
        traced = TracedRuns(traces, without_text=codec.encryption.routes)
        hooks = Hooks(
            around_run=nested(traced.around_run, count),
            around_statement=traced.around_statement,
            current_trace=traces.here,
        )
    stack.push_async_callback(http.aclose)
    return WorkerContext(
        work=sessions,
        ledger=ledger,
        http=http,
        patience=settings.lease,
        config=project.config,
        registry=project.registry,
        codec=codec,
        api_keys=project.api_keys,
        resources=resources,
        hooks=hooks,
        on_repair=metrics.repaired,
    )


def _alert_sender(project: Project, ledger: Pool) -> AlertSender:
    return AlertSender(
        ledger,
        alerts=project.config.alerts,
        destinations=project.alerts,
        every=project.settings.sweep,
    )


def _schedule(project: Project, ledger: Pool, hint: Callable[[Iterable[int]], None]) -> Schedule:
    return Schedule(
        ledger,
        url=database_url(project.settings),
        config=project.config,
        registry=project.registry,
        encryption=vault_of(project.config, project.ring),
        hint=hint,
    )


async def _drain(runner: Runner, isolated: IsolatedWorker | None, grace: timedelta) -> None:
    stopping: list[Awaitable[None]] = [runner.drain(grace)]
    if isolated is not None:
        stopping.append(isolated.stop(grace))
    await asyncio.gather(*stopping)


async def _close(pool: Pool) -> None:
    closing = asyncio.ensure_future(pool.close())
    await asyncio.wait({closing}, timeout=CLOSE_S)
    if not closing.done():
        pool.terminate()
        closing.cancel()
    elif closing.exception() is not None:  # the connection was lost in the meantime
        pool.terminate()
