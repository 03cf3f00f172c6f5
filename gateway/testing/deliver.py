"""The fixture `deliver`: delivers an event to a handler the way the gateway does."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from gateway.base.model import Event, Status
from gateway.config.project import Project
from gateway.config.registry import HandlerFunction, Subscription
from gateway.config.routes import Route
from gateway.testing.fixtures import Background
from gateway.testing.runner import CrashPoint, DeliveryRunner, RunResult

DUPLICATE: Final = "duplicate"
MOST_RUNS: Final = 1000
"""Maximum number of deliveries in one call of `pending`.

If there are more, there is a loop: a job that publishes itself, or a handler that defers without a
delay.
"""


class DeliveryFailed(AssertionError):
    """The delivery is not done, and the handler raised no exception that explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The state of a delivery after the call."""

    handler: str
    status: str
    """`done`, `pending` (it will be retried) or `dead`; `running` if the run was crashed."""
    outcome: str | None
    """The outcome of the run.

    `done`, `retry`, `dead`, `deferred`, `lost` or `skipped` (`once_per`); `duplicate` if nothing
    ran because the delivery had ended before; None if the run was crashed.
    """
    error: str | None
    """The error in one line, as `gateway show` prints it.

    If an ordering key blocks the delivery, it names the delivery that must end first.
    """
    traceback: str | None
    attempts: int
    """The number of attempts used since the last replay."""
    published: tuple[Event, ...] = ()
    """The jobs published by `ctx.publish`, to be inspected or delivered."""
    exception: Exception | None = field(default=None, repr=False)
    """The exception that the handler raised."""


class Deliver:
    """The fixture `deliver`."""

    def __init__(self, project: Project, runner: DeliveryRunner, background: Background) -> None:
        self._project = project
        self._runner = runner
        self._background = background

    def __call__(
        self, handler: HandlerFunction | str, event: Event, *, check: bool = True
    ) -> Delivered:
        """Claim the event, run this handler's delivery of it, and settle it.

        An exception of the handler is raised again, unless `check` is False. A delivery that is to
        be retried is retried now, without its backoff. A delivery that is done is a duplicate and
        does not run: see `replay`.
        """
        __tracebackhide__ = True
        return self._deliver(handler, event, check, replayed=False)

    def replay(
        self, handler: HandlerFunction | str, event: Event, *, check: bool = True
    ) -> Delivered:
        """Run a delivery again that has ended, as `gateway replay` does."""
        __tracebackhide__ = True
        return self._deliver(handler, event, check, replayed=True)

    def pending(self, *, check: bool = True) -> list[Delivered]:
        """Run all due deliveries of all handlers, and those that result, until none is left."""
        __tracebackhide__ = True
        results: list[Delivered] = []
        while (found := self._background.run(self._run_next())) is not None:
            if len(results) == MOST_RUNS:
                raise DeliveryFailed(
                    f"{MOST_RUNS} deliveries were run and more are due: the last was of "
                    f"{results[-1].handler}"
                )
            results.append(_checked(found, check))
        return results

    def _deliver(
        self, handler: HandlerFunction | str, event: Event, check: bool, *, replayed: bool
    ) -> Delivered:
        __tracebackhide__ = True
        subscription = self._subscription(handler, event)
        found = self._background.run(self._run(subscription, event, replayed))
        return _checked(found, check)

    async def _run(self, subscription: Subscription, event: Event, replayed: bool) -> Delivered:
        runner = self._runner
        await runner.claim(self._route(event), event)
        row = await runner.find(subscription, event)
        if replayed:
            await runner.replay(row["id"])
        elif row["status"] in (Status.DONE, Status.DEAD, Status.DISCARDED):
            return _delivered(RunResult(row=row), outcome=DUPLICATE)
        await runner.make_due(row["id"])
        lease = await runner.lease(subscription, row["id"])
        if lease is None:
            error = await self._reason_to_wait(subscription, row["id"])
            return replace(_delivered(RunResult(row=row)), error=error)
        return _delivered(await runner.run(subscription, lease))

    async def _reason_to_wait(self, subscription: Subscription, delivery_id: int) -> str:
        holder = await self._runner.blocker(delivery_id)
        if holder is None:
            return "it is not due yet"
        first = f"delivery {holder['id']} (event {holder['event_id']})"
        remedy = (
            "which is dead and blocks it: run that again with deliver.replay"
            if holder["status"] == Status.DEAD
            else f"which is {holder['status']}: deliver that event first"
        )
        return f"it waits for {first} with the same {subscription.turns}, {remedy}"

    async def _run_next(self) -> Delivered | None:
        lease = await self._runner.lease_next()
        if lease is None:
            return None
        key = (lease.event.route, lease.handler)
        subscription = next(s for s in self._project.registry.handlers if s.key == key)
        return _delivered(await self._runner.run(subscription, lease))

    def _route(self, event: Event) -> Route:
        return next(r for r in self._project.config.routes if r.name == event.route)

    def _subscription(self, handler: HandlerFunction | str, event: Event) -> Subscription:
        __tracebackhide__ = True
        subscriptions = self._project.registry.handlers
        found = [s for s in subscriptions if handler in (s.handler, s.function, *s.formerly)]
        if handler in {s.handler for s in self._project.registry.subscriptions if s.forward}:
            raise ValueError(f"{_name(handler)} is a forward: tests run your own code only")
        if not found:
            known = ", ".join(dict.fromkeys(s.handler for s in subscriptions))
            raise ValueError(f"{_name(handler)} is no handler of this project; it has {known}")
        for subscription in found:
            if subscription.route == event.route:
                _check_type(subscription, event)
                return subscription
        routes = ", ".join(s.route for s in found)
        raise ValueError(
            f"{_name(handler)} takes events of the route {routes}; this is one of {event.route}"
        )


class DeliverTwice:
    """The fixture `deliver_twice`."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def __call__(
        self, handler: HandlerFunction | str, event: Event, *, check: bool = True
    ) -> tuple[Delivered, Delivered]:
        """Deliver and then replay: the handler runs twice on one event and commits both times."""
        __tracebackhide__ = True
        first = self._deliver(handler, event, check=check)
        return first, self._deliver.replay(handler, event, check=check)


class CrashAfter:
    """The fixture `crash_after`."""

    def __init__(self, runner: DeliveryRunner) -> None:
        self._runner = runner

    def __call__(
        self, statements: int | None = None, *, calls: int | None = None
    ) -> AbstractContextManager[None]:
        """Return a block in which a run crashes at the given point.

        The point is after so many statements of `ctx.db`, or so many requests of `ctx.http`; 0 is
        before the first statement. The run crashes as by `kill -9`: its connection is cut, nothing
        is settled, no `finally` block runs. The next `deliver` of the event runs it again, as after
        an expired lease. The block fails if no run crashed in it.
        """
        __tracebackhide__ = True
        if (statements is None) == (calls is None):
            raise ValueError("crash_after: after how many statements, or calls=...? Say one")
        return self._crash(CrashPoint(statements=statements, calls=calls))

    @contextmanager
    def _crash(self, point: CrashPoint) -> Iterator[None]:
        __tracebackhide__ = True
        self._runner.crash = point
        try:
            yield
        finally:
            self._runner.crash = None
        if not point.is_reached:
            raise DeliveryFailed(
                f"nothing crashed: there were {point.statements_seen} statements of ctx.db "
                f"and {point.calls_seen} requests of ctx.http"
            )


def _delivered(ran: RunResult, outcome: str | None = None) -> Delivered:
    __tracebackhide__ = True
    if ran.refused is not None:
        raise ran.refused from (ran.raised[0] if ran.raised else None)
    row = ran.row
    return Delivered(
        handler=row["handler"],
        status=row["status"],
        outcome=outcome or row["outcome"],
        error=row["error"],
        traceback=row["traceback"] if row["error"] else None,
        attempts=row["attempts"],
        published=ran.published,
        exception=None if ran.raised is None else ran.raised[0].with_traceback(ran.raised[1]),
    )


def _checked(found: Delivered, check: bool) -> Delivered:
    __tracebackhide__ = True
    if not check or found.status in (Status.DONE, Status.RUNNING):
        return found
    if found.exception is not None:
        raise found.exception
    if found.outcome == DUPLICATE:
        raise DeliveryFailed(
            f"{found.handler} was not run: its delivery is {found.status} ({found.error}); "
            "deliver.replay runs it again"
        )
    raise DeliveryFailed(f"{found.handler}: {found.traceback or found.error}")


def _check_type(subscription: Subscription, event: Event) -> None:
    __tracebackhide__ = True
    if not any(fnmatchcase(event.type, glob) for glob in subscription.types):
        raise ValueError(
            f"{subscription.handler} takes {', '.join(subscription.types)}; this event is "
            f"{event.type}"
        )


def _name(handler: Any) -> str:
    if isinstance(handler, str):
        return repr(handler)
    return f"{getattr(handler, '__module__', '')}.{getattr(handler, '__qualname__', handler)}"
