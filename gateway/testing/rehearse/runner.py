"""Rehearse the requested handlers one after the other on one temporary server."""

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from gateway.base.errors import CommandFailed, EngineFailed, StorageUnavailable
from gateway.config.project import Project
from gateway.config.registry import Subscription
from gateway.config.routes import Route
from gateway.ledger.migrate import SchemaFile, read_schema
from gateway.providers.samples import Recorded
from gateway.testing.rehearse.events import RehearsedEvent, find_events, make_job, takes
from gateway.testing.rehearse.findings import Report, Verdict, without_secrets_in
from gateway.testing.rehearse.isolation import (
    RehearsalGuard,
    RehearsalLoop,
    noting_forgotten,
    quick_sleeps,
    recorded_mail,
    rehearsing,
)
from gateway.testing.rehearse.rehearsal import Rehearsal
from gateway.testing.rehearse.sandbox import Sandbox
from gateway.testing.rehearse.schedules import Schedules
from gateway.testing.rehearse.server_process import ServerProcess
from gateway.testing.rehearse.services import GivenAnswer
from gateway.testing.throwaway import Databases, Throwaway
from gateway.worker.policy import summary

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class Unwinding:
    """Ends the running task on a signal, or the process if no task is running."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._signum: int | None = None

    def run(self, runner: asyncio.Runner, work: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine to its end, or until it has cleaned up after a signal.

        Raises SystemExit in that case. If the signal handler raised it, it would end up in the
        handler that is being rehearsed.
        """
        try:
            runner.run(self._watch(work))
        except asyncio.CancelledError:
            if self._signum is None:
                raise
            sys.exit(128 + self._signum)

    async def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.current_task()
        try:
            await work
        finally:
            self._task = None

    def hear(self, signum: int, _: FrameType | None) -> None:
        """Handle the signal."""
        self._signum = signum
        if self._task is None:
            sys.exit(128 + signum)
        self._task.get_loop().call_soon_threadsafe(self._task.cancel)


@contextmanager
def unwinding() -> Iterator[Unwinding]:
    """Handle the signals while the block runs, so that its cleanup runs too."""
    found = Unwinding()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = [signal.signal(signum, found.hear) for signum in SIGNALS]
    try:
        yield found
    finally:
        for signum, handler in zip(SIGNALS, before, strict=True):
            signal.signal(signum, handler)


REPORT_HINT: Final = "please report this with the handler: the others are not affected"
RECORD_HINT: Final = "record one with `gateway show ID --save FILE` and pass --event FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The handlers to rehearse, and the options."""

    project: Project
    handlers: Sequence[str]
    """The names of the handlers. Empty means all of them."""
    recorded: Mapping[str, Recorded]
    """The recorded events, by file name."""
    seeds: Sequence[Path] = ()
    """SQL files that insert rows after the schema has been applied."""
    answers: Sequence[GivenAnswer] = ()
    """Responses to requests of `ctx.http` and `ctx.stripe`."""
    reads: Sequence[str] = ()
    """Globs of URLs at which no request changes anything, whatever its method."""
    server_url: str | None = None


def rehearse(
    request: Request,
    on_report: Callable[[Report], None],
    server_process: ServerProcess | None = None,
) -> None:
    """Report each handler as soon as it is done. Raises CommandFailed for an unknown handler.

    Without a server process that has confined this one, only connections of Python itself and of
    the drivers that are wrapped are refused.
    """
    subscriptions = _chosen(request)
    is_confined = server_process is not None and server_process.is_confined
    outlet = server_process if is_confined else None
    guard = RehearsalGuard(Path.cwd(), outlet)
    schema: list[SchemaFile] = [*read_schema([*request.project.config.schema, *request.seeds])]
    with (
        unwinding() as unwound,
        _databases(request, schema, server_process) as databases,
        asyncio.Runner(loop_factory=partial(RehearsalLoop, outlet)) as runner,
    ):
        unwound.run(runner, _rehearse(request, subscriptions, databases, guard, on_report))


@contextmanager
def _databases(
    request: Request, schema: Sequence[SchemaFile], server_process: ServerProcess | None
) -> Iterator[Databases]:
    url, engines = request.server_url, request.project.settings.engines
    if server_process is None:
        with Throwaway(schema, server_url=url, engines=engines) as throwaway:
            yield throwaway
    else:
        server_process.start(schema, url, engines)
        yield server_process


async def _rehearse(
    request: Request,
    subscriptions: Sequence[Subscription],
    databases: Databases,
    guard: RehearsalGuard,
    on_report: Callable[[Report], None],
) -> None:
    root, started_at = Path.cwd(), datetime.now(UTC)
    sandbox = Sandbox(
        databases,
        request.project,
        root,
        started_at,
        answers=request.answers,
        reads=request.reads,
    )
    try:
        await sandbox.fresh()
        with rehearsing(guard), recorded_mail(), quick_sleeps(), noting_forgotten(root):
            runner = RehearsalRunner(request, sandbox, guard, root, started_at)
            for subscription in subscriptions:
                on_report(without_secrets_in(await runner.try_to_rehearse(subscription)))
    finally:
        await sandbox.close()


class RehearsalRunner:
    """Finds the events for each handler, and rehearses it."""

    def __init__(
        self,
        request: Request,
        sandbox: Sandbox,
        guard: RehearsalGuard,
        root: Path,
        started_at: datetime,
    ) -> None:
        self._request = request
        self._sandbox = sandbox
        self._guard = guard
        self._root = root
        self._started_at = started_at
        self._routes = {route.name: route for route in request.project.config.routes}
        self._published: list[RehearsedEvent] | None = None

    async def try_to_rehearse(self, subscription: Subscription) -> Report:
        """Rehearse a handler. An unexpected error becomes a report, so that the others continue."""
        try:
            return await self.rehearse(subscription)
        except (StorageUnavailable, EngineFailed):
            raise
        except Exception as error:
            await self._sandbox.renew()
            return Report(
                handler=subscription.handler,
                route=subscription.route,
                verdict=Verdict.FAILED,
                reason=f"the rehearsal itself failed: {summary(error)}",
                advice=REPORT_HINT,
            )

    async def rehearse(self, subscription: Subscription) -> Report:
        route = self._routes[subscription.route]
        events = self._events(subscription, route)
        if route.provider.is_queue and not events:
            events = await self._jobs(subscription, route)
        if not events:
            return self._skipped(subscription, route)
        rehearsal = Rehearsal(
            self._sandbox,
            self._guard,
            subscription,
            root=self._root,
            started_at=self._started_at,
        )
        return await rehearsal.rehearse(events)

    def _events(self, subscription: Subscription, route: Route) -> list[RehearsedEvent]:
        return find_events(subscription, route, self._request.recorded, self._started_at)

    async def _jobs(self, subscription: Subscription, queue: Route) -> list[RehearsedEvent]:
        """Return the jobs that other handlers publish to this queue, one of each type."""
        if self._published is None:
            self._published = [job async for job in self._publish()]
        jobs = {job.received.type: job for job in self._published if job.route is queue}
        return [job for type, job in jobs.items() if takes(subscription, type)]

    async def _publish(self) -> AsyncIterator[RehearsedEvent]:
        """Run every handler once on its own events, and yield the jobs that are in the queues."""
        queues = [route for route in self._routes.values() if route.provider.is_queue]
        for other in self._request.project.registry.handlers:
            for event in self._events(other, self._routes[other.route]):
                await Schedules(self._sandbox, other).once(event)
                for queue in queues:
                    for id, type, payload in await self._sandbox.jobs(queue.name):
                        yield make_job(queue, id, type, payload, self._started_at)

    def _skipped(self, subscription: Subscription, route: Route) -> Report:
        types = " ".join(subscription.types)
        if route.provider.is_queue:
            reason = f"no handler publishes {types} to the queue {route.name} on its sample events"
        else:
            reason = f"no sample of type {types}; {RECORD_HINT}"
        return Report(
            handler=subscription.handler,
            route=subscription.route,
            verdict=Verdict.SKIPPED,
            reason=reason,
        )


def _named(request: Request) -> list[Subscription]:
    """Return the named handlers, or else all. Raises CommandFailed for an unknown name."""
    registry = request.project.registry
    for name in request.handlers:
        if name in {s.handler for s in registry.subscriptions if s.forward is not None}:
            raise CommandFailed(f"{name} is a forward: no code of yours runs here")
        if not any(_is_named(s, name) for s in registry.handlers):
            known = ", ".join(sorted({s.handler for s in registry.handlers})) or "none"
            raise CommandFailed(f"there is no handler {name!r}; expected one of {known}")
    if not request.handlers:
        return list(registry.handlers)
    return [s for s in registry.handlers if any(_is_named(s, n) for n in request.handlers)]


def _chosen(request: Request) -> list[Subscription]:
    """Return the named handlers that take a recorded event, or all that do, or all named ones.

    Raises CommandFailed for an event that none of them takes, and for a named handler that takes
    none of the events, because it would be tried on others than the user asked for.
    """
    chosen = _named(request)
    if not request.recorded:
        return chosen
    providers = {route.name: route.provider.name for route in request.project.config.routes}
    taken_by = {
        file: [
            s
            for s in request.project.registry.handlers
            if providers[s.route] == item.provider and takes(s, item.type)
        ]
        for file, item in request.recorded.items()
    }
    for file, item in request.recorded.items():
        if not taken_by[file]:
            raise CommandFailed(f"{file}: no handler takes {item.type} of {item.provider}")
        if not any(s in chosen for s in taken_by[file]):
            names = ", ".join(dict.fromkeys(s.handler for s in chosen))
            raise CommandFailed(f"{file}: {item.type} of {item.provider} is not taken by {names}")
    taking = [s for s in chosen if any(s in subscriptions for subscriptions in taken_by.values())]
    for s in chosen if request.handlers else ():
        if s.handler not in {other.handler for other in taking}:  # it may be on two routes
            files = ", ".join(request.recorded)
            raise CommandFailed(f"{s.handler} takes {' '.join(s.types)}, and none of {files}")
    return taking


def _is_named(subscription: Subscription, name: str) -> bool:
    names = (subscription.handler, *subscription.formerly)
    return any(known == name or known.endswith(f".{name}") for known in names)
