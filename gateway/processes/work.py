"""Builds a worker from the settings: connection pools, runner, sweeper.

It does not depend on Redis.
"""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import httpx
import structlog

from gateway.base.names import Names
from gateway.config.project import Project, database_url
from gateway.config.registry import Subscription
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
    Connection,
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
from gateway.worker.forward import Forwarder
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


class Worker:
    """Runs deliveries until it is stopped. It is faster with wake-ups, but does not need them.

    An isolated worker runs only suspects, one at a time, for the worker that started its process.
    """

    def __init__(self, project: Project, *, isolated: bool = False) -> None:
        self._project = project
        self._is_isolated = isolated
        self._settings = project.settings
        if isolated:
            self._settings = project.settings.model_copy(update=ISOLATED)
        self._pushing = OutboundClient(most_connections=self._settings.concurrency)
        self._subscriptions: tuple[Subscription, ...] = ()
        self._handlers: list[tuple[str, str]] = []
        self._url = database_url(project.settings)
        self._traces = open_traces(on=project.settings.traces == "on", process="worker")
        self._resources = OpenResources(project.registry.resources)
        self._tasks: list[asyncio.Task[None]] = []
        self._pools: list[Pool] = []
        self._ledger: Pool | None = None
        self._sessions: Sessions | None = None
        self._http: httpx.AsyncClient | None = None
        self._runner: Runner | None = None
        self._isolated: IsolatedWorker | None = None
        self._sweeper: Sweeper | None = None
        self._stats = MinuteStats()
        self._keeper: StatsWriter | None = None
        self.metrics = WorkerMetrics()
        self._vitals = WorkerHealth(sweep=project.settings.sweep, lease=project.settings.lease)
        self._port = self._make_port()
        self._watch()
        self._pulsing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Check the ledger and start to work. After the start it waits out outages of Postgres."""
        self._pulsing = asyncio.create_task(self._vitals.pulse.beat_forever(), name="pulse")
        if self._port is not None:
            self._port.start()
        try:
            await self._start()
        except BaseException:
            self._end_port()
            raise

    async def _start(self) -> None:
        connection = await connect(self._url, name="gateway worker")
        try:
            await check_version(connection)
            self._take(await settle_names(connection, self._project.declared_names()))
            await self._announce_policies(connection)
            search_path = await users_search_path(connection)
            durable = await durable_settings(connection)
            await warn_of_shortage(connection, worker_connections(self._settings))
        finally:
            await connection.close()
        resources = await self._resources.open()
        self._http = self._client()
        bench = await self._workbench(self._http, search_path, durable, resources)
        self._ledger = bench.ledger
        self._runner, self._sweeper = await self._assemble(bench)
        self._keeper = StatsWriter(self._stats, ledger=bench.ledger, every=self._settings.sweep)
        self._keeper.start()
        self._tasks = [
            asyncio.create_task(self._runner.take_forever(), name="take"),
            asyncio.create_task(self._runner.beat_forever(), name="beat"),
            asyncio.create_task(self._sweeper.sweep_forever(), name="sweep"),
        ]
        if not self._is_isolated:
            self._isolated = IsolatedWorker(
                bench.ledger, handlers=self._handlers, every=self._settings.sweep
            )
            self._tasks += [
                asyncio.create_task(self._teller(bench.ledger).tell_forever(), name="alerts"),
                asyncio.create_task(self._schedule(bench.ledger).run_forever(), name="reconcile"),
                asyncio.create_task(self._isolated.supervise_forever(), name="isolate"),
            ]
        self._vitals.watch(self._runner, self._tasks)
        handlers = len(self._subscriptions)
        log.info("worker_started", handlers=handlers, slots=self._settings.concurrency)

    def _take(self, names: Names) -> None:
        """Replace the names of routes and handlers by their identities."""
        self._project = project = self._project.identified(names)
        forwarder = Forwarder(self._pushing, project.destinations)
        self._subscriptions = tuple(map(forwarder.bind, project.registry.subscriptions))
        self._handlers = [s.key for s in self._subscriptions]
        self.metrics.names = names
        self.metrics.expect(self._handlers)
        show_names(names)

    def hint(self, delivery_ids: Iterable[int]) -> None:
        """Wake up the worker: these deliveries may be due."""
        if self._runner is not None and not self._is_isolated:
            self._runner.hint(delivery_ids)

    async def wait_idle(self) -> None:
        """Return when an isolated worker runs nothing and no suspect is due."""
        while True:
            await asyncio.sleep(self._settings.sweep.total_seconds())
            if self._ledger is None or self._runner is None or self._runner.busy:
                continue
            try:
                if not await find_suspects(self._ledger, self._handlers):
                    return
            except TROUBLE as error:
                log.warning("suspects_unknown", error=describe(error))

    async def wait_failed(self) -> None:
        """Raise the error of a part of the worker that ended unexpectedly.

        Never returns otherwise.
        """
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Stop gracefully.

        The worker takes no new deliveries, lets the running ones finish within the grace time, and
        hands back the rest.
        """
        if self._runner is None or self._sweeper is None:
            return
        stopping = [self._runner.drain(self._settings.grace)]
        if self._isolated is not None:
            stopping.append(self._isolated.stop(self._settings.grace))
        await asyncio.gather(*stopping)
        await self._resources.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._sweeper.leave()
        if self._keeper is not None:
            await self._keeper.stop()
        if self._sessions is not None:
            await self._sessions.close()
        for pool in self._pools:
            await _close(pool)
        await self._pushing.aclose()
        if self._http is not None:
            await self._http.aclose()
        if self._traces is not None:
            await self._traces.close()
        self._end_port()
        log.info("worker_stopped")

    def _watch(self) -> None:
        """Register the sources that the metrics read when they are scraped."""
        metrics, settings = self.metrics, self._settings
        metrics.watch_loop(self._vitals.pulse)
        metrics.watch_ledger(self._url, lately=settings.sweep * MISSED_ROUNDS)
        metrics.watch_slots(settings.concurrency, lambda: self._runner.busy if self._runner else 0)

    def _client(self) -> httpx.AsyncClient:
        timeout = httpx.Timeout(30, connect=5)
        if self._traces is None:
            return httpx.AsyncClient(timeout=timeout)
        from gateway.worker.traced import TracedClient  # opentelemetry

        return TracedClient(self._traces, timeout=timeout)

    def _make_port(self) -> Port | None:
        """Return the HTTP port of the worker, or None if none is configured."""
        settings = self._settings
        if settings.worker_port is None:
            return None
        addresses = Addresses(settings.trusted_proxies)
        guard = TokenGuard(Limiters(addresses, settings.refused_rate), self.metrics.admin_refused)

        def app() -> Probes:
            return Probes(
                stuck=self._vitals.stuck,
                not_ready=self._vitals.not_ready,
                metrics=self.metrics.show,
                guard=metrics_guard(settings, guard),
            )

        return Port(settings.host, settings.worker_port, app)

    def _end_port(self) -> None:
        if self._pulsing is not None:
            self._pulsing.cancel()
        if self._port is not None:
            self._port.stop()

    def hurry(self) -> None:
        """End the grace time of a stop in progress."""
        if self._runner is not None:
            self._runner.hurry()
        if self._isolated is not None:
            self._isolated.hurry()

    async def _announce_policies(self, connection: Connection) -> None:
        """Store the policies and rate limits of the handlers in the ledger."""
        await keep_policies(connection, [(s.key, s.on_dead) for s in self._subscriptions])
        for subscription in self._subscriptions:
            if subscription.rate is not None:
                await keep_places(connection, subscription.key, subscription.rate.count)

    async def _workbench(
        self,
        http: httpx.AsyncClient,
        search_path: str,
        durable: Mapping[str, str],
        resources: Mapping[str, Any],
    ) -> WorkerContext:
        sessions = self._sessions = Sessions(
            self._url,
            name="gateway worker handlers",
            most=handler_connections(self._settings),
            search_path=search_path,
            **durable,
        )
        most = handler_connections(self._settings)
        self.metrics.watch_connections("handlers", lambda: (*sessions.use, most))
        return WorkerContext(
            work=sessions,
            ledger=await self._pool(
                "ledger", LEDGER_CONNECTIONS, command_timeout_s=LEDGER_COMMAND_S, **durable
            ),
            http=http,
            patience=self._settings.lease,
            config=self._project.config,
            registry=self._project.registry,
            encryption=vault_of(self._project.config, self._project.ring),
            api_keys=self._project.api_keys,
            resources=resources,
            stats=self._stats,
            metrics=self.metrics,
            traces=self._traces,
            on_retry=self._expect,
            on_published=self.hint,
        )

    async def _assemble(self, bench: WorkerContext) -> tuple[Runner, Sweeper]:
        settings = self._settings
        # A lease need not survive a crash, because its token is the fence.
        leases = await self._pool(
            "leases",
            LEASE_CONNECTIONS,
            command_timeout_s=COMMAND_TIMEOUT_S,
            synchronous_commit="off",
        )
        worker_id = uuid4()
        held = HeldBytes(settings.max_leased, slots=settings.concurrency)
        intake = Intake(
            leases,
            subscriptions=self._subscriptions,
            lease=settings.lease,
            scan_every=settings.sweep,
            held=held,
            suspects=self._is_isolated,
            metrics=self.metrics,
        )
        runner = Runner(
            subscriptions=self._subscriptions,
            leases=leases,
            bench=bench,
            intake=intake,
            held=held,
            slots=settings.concurrency,
            most_ahead=0 if self._is_isolated else settings.concurrency,
            lease=settings.lease,
            worker_id=worker_id,
        )
        sweeper = Sweeper(
            bench.ledger,
            pruner=Pruner(self._project.config.retention, audit=settings.audit_retention),
            retention=self._project.config.retention,
            rejected=settings.rejected_retention,
            handlers=self._handlers,
            turns=StuckKeys(),
            stats=self._stats,
            metrics=self.metrics,
            every=settings.sweep,
            lease=settings.lease,
            worker_id=worker_id,
            isolated=self._is_isolated,
            renew=runner.beat,
            on_due=runner.scan_now,
        )
        return runner, sweeper

    def _teller(self, ledger: Pool) -> AlertSender:
        return AlertSender(
            ledger,
            alerts=self._project.config.alerts,
            destinations=self._project.alerts,
            every=self._settings.sweep,
        )

    def _schedule(self, ledger: Pool) -> Schedule:
        return Schedule(
            ledger,
            url=self._url,
            config=self._project.config,
            registry=self._project.registry,
            encryption=vault_of(self._project.config, self._project.ring),
            hint=self.hint,
        )

    async def _pool(
        self,
        name: str,
        size: int,
        *,
        command_timeout_s: float,
        **server_settings: str,
    ) -> Pool:
        pool = await open_pool(
            self._url,
            name=f"gateway worker {name}",
            size=min(size, ISOLATED_POOL) if self._is_isolated else size,
            command_timeout_s=command_timeout_s,
            **PREPARED_ONCE,
            **server_settings,
        )
        self._pools.append(pool)
        self.metrics.watch_pool(name, pool)
        return pool

    def _expect(self, delay: timedelta) -> None:
        """Schedule a scan if a retry falls due before the next sweep."""
        if self._runner is not None and delay < self._settings.sweep:
            loop = asyncio.get_running_loop()
            loop.call_later(delay.total_seconds(), self._runner.scan_now)


async def _close(pool: Pool) -> None:
    closing = asyncio.ensure_future(pool.close())
    await asyncio.wait({closing}, timeout=CLOSE_S)
    if not closing.done():
        pool.terminate()
        closing.cancel()
    elif closing.exception() is not None:  # the connection was lost in the meantime
        pool.terminate()
