"""Rehearses all handlers that were asked for, one after the other, on one throwaway server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gateway.errors import CommandFailed, EngineFailed, StorageUnavailable
from gateway.ledger.migrate import SchemaFile, read_schema
from gateway.project import Project
from gateway.registry import Subscription
from gateway.routes import Route
from gateway.run.policy import summary
from gateway.samples import Recorded
from gateway.testing.rehearse.answers import GivenAnswer
from gateway.testing.rehearse.events import Occasion, find_occasions, make_job, takes
from gateway.testing.rehearse.forgotten import noting_forgotten
from gateway.testing.rehearse.guard import Guard, RehearsalLoop, guarding
from gateway.testing.rehearse.mail import recorded_mail
from gateway.testing.rehearse.redaction import without_secrets_in
from gateway.testing.rehearse.rehearsal import Rehearsal
from gateway.testing.rehearse.report import Report, Verdict
from gateway.testing.rehearse.schedules import Schedules
from gateway.testing.rehearse.signals import unwinding
from gateway.testing.rehearse.stage import Stage
from gateway.testing.throwaway import Throwaway

REPORT_HINT: Final = "please report this with the handler: the others are not affected"
RECORD_HINT: Final = "record one with `gateway show ID --save FILE` and pass --event FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to rehearse, and with what."""

    project: Project
    handlers: Sequence[str]
    """Names; none means all."""
    recorded: Mapping[str, Recorded]
    """By the file."""
    seeds: Sequence[Path] = ()
    """SQL that puts rows there, after the schema."""
    answers: Sequence[GivenAnswer] = ()
    """Of `ctx.http` and `ctx.stripe`."""
    reads: Sequence[str] = ()
    """Globs of addresses at which any request only reads."""
    server_url: str | None = None


def rehearse(request: Request, on_report: Callable[[Report], None]) -> None:
    """Tells of each handler as soon as it is done. Raises CommandFailed for one that is none."""
    subscriptions = _chosen(request)
    schema: list[SchemaFile] = [*read_schema([*request.project.config.schema, *request.seeds])]
    with (
        unwinding() as unwound,
        Throwaway(
            schema, server_url=request.server_url, engines=request.project.settings.engines
        ) as throwaway,
        asyncio.Runner(loop_factory=RehearsalLoop) as runner,
    ):
        unwound.run(runner, _rehearse(request, subscriptions, throwaway, on_report))


async def _rehearse(
    request: Request,
    subscriptions: Sequence[Subscription],
    throwaway: Throwaway,
    on_report: Callable[[Report], None],
) -> None:
    root, started_at = Path.cwd(), datetime.now(UTC)
    async with _stage(request, throwaway, root, started_at) as (stage, guard):
        company = _Company(request, stage, guard, root, started_at)
        for subscription in subscriptions:
            on_report(without_secrets_in(await company.try_to_rehearse(subscription)))


@asynccontextmanager
async def _stage(
    request: Request, throwaway: Throwaway, root: Path, started_at: datetime
) -> AsyncIterator[tuple[Stage, Guard]]:
    stage = Stage(
        throwaway,
        request.project,
        root,
        started_at,
        answers=request.answers,
        reads=request.reads,
    )
    try:
        await stage.fresh()
        guard = Guard(root)
        with guarding(guard), recorded_mail(), noting_forgotten(root):
            yield stage, guard
    finally:
        await stage.close()


class _Company:
    """Knows what every handler may be rehearsed on."""

    def __init__(
        self, request: Request, stage: Stage, guard: Guard, root: Path, started_at: datetime
    ) -> None:
        self._request = request
        self._stage = stage
        self._guard = guard
        self._root = root
        self._started_at = started_at
        self._routes = {route.name: route for route in request.project.config.routes}
        self._published: list[Occasion] | None = None

    async def try_to_rehearse(self, subscription: Subscription) -> Report:
        """What goes wrong with one handler does not keep the others from being rehearsed."""
        try:
            return await self.rehearse(subscription)
        except (StorageUnavailable, EngineFailed):
            raise
        except Exception as error:
            await self._stage.renew()
            return Report(
                handler=subscription.handler,
                route=subscription.route,
                verdict=Verdict.FAILED,
                reason=f"the rehearsal itself failed: {summary(error)}",
                advice=REPORT_HINT,
            )

    async def rehearse(self, subscription: Subscription) -> Report:
        route = self._routes[subscription.route]
        occasions = self._occasions(subscription, route)
        if route.provider.is_queue and not occasions:
            occasions = await self._jobs(subscription, route)
        if not occasions:
            return self._skipped(subscription, route)
        rehearsal = Rehearsal(
            self._stage,
            self._guard,
            subscription,
            root=self._root,
            started_at=self._started_at,
        )
        return await rehearsal.rehearse(occasions)

    def _occasions(self, subscription: Subscription, route: Route) -> list[Occasion]:
        return find_occasions(subscription, route, self._request.recorded, self._started_at)

    async def _jobs(self, subscription: Subscription, queue: Route) -> list[Occasion]:
        """What the other handlers publish to this queue, one job of each type."""
        if self._published is None:
            self._published = [job async for job in self._publish()]
        jobs = {job.envelope.type: job for job in self._published if job.route is queue}
        return [job for type, job in jobs.items() if takes(subscription, type)]

    async def _publish(self) -> AsyncIterator[Occasion]:
        """Runs every handler once on its own events, and sees what comes into the queues."""
        queues = [route for route in self._routes.values() if route.provider.is_queue]
        for other in self._request.project.registry.handlers:
            for occasion in self._occasions(other, self._routes[other.route]):
                await Schedules(self._stage, other).once(occasion)
                for queue in queues:
                    for id, type, payload in await self._stage.jobs(queue.name):
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


def _chosen(request: Request) -> list[Subscription]:
    """Those that are named; else those that take a recorded event; else all."""
    registry = request.project.registry
    subscriptions = registry.handlers
    routes = {route.name: route for route in request.project.config.routes}
    for name in request.handlers:
        if name in {s.handler for s in registry.subscriptions if s.forward is not None}:
            raise CommandFailed(f"{name} is a forward: no code of yours runs here")
        if not any(_is_named(s, name) for s in subscriptions):
            known = ", ".join(sorted({s.handler for s in subscriptions})) or "none"
            raise CommandFailed(f"there is no handler {name!r}; expected one of {known}")
    for file, item in request.recorded.items():
        if not any(_takes(s, routes[s.route], item) for s in subscriptions):
            raise CommandFailed(f"{file}: no handler takes {item.type} of {item.provider}")
    if request.handlers:
        named = [s for s in subscriptions if any(_is_named(s, n) for n in request.handlers)]
        _check_taken(named, routes, request.recorded)
        return named
    if request.recorded:
        recorded = request.recorded.values()
        return [
            s for s in subscriptions if any(_takes(s, routes[s.route], item) for item in recorded)
        ]
    return list(subscriptions)


def _check_taken(
    named: Sequence[Subscription], routes: Mapping[str, Route], recorded: Mapping[str, Recorded]
) -> None:
    """Raises CommandFailed where a handler and an event were both named, and one has no use for the
    other: it would be tried on something else than what was asked for."""
    names = ", ".join(dict.fromkeys(s.handler for s in named))
    for file, item in recorded.items():
        if not any(_takes(s, routes[s.route], item) for s in named):
            raise CommandFailed(f"{file}: {item.type} of {item.provider} is not taken by {names}")
    for s in named:
        if recorded and not any(_takes(s, routes[s.route], item) for item in recorded.values()):
            files = ", ".join(recorded)
            raise CommandFailed(f"{s.handler} takes {' '.join(s.types)}, and none of {files}")


def _is_named(subscription: Subscription, name: str) -> bool:
    return subscription.handler == name or subscription.handler.endswith(f".{name}")


def _takes(subscription: Subscription, route: Route, item: Recorded) -> bool:
    return route.provider.name == item.provider and takes(subscription, item.type)
