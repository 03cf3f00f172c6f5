"""Bulk operations on everything that matches a filter: count, begin, resume and run them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from gateway.base.errors import CommandFailed, NotFound
from gateway.base.names import Names
from gateway.base.problems import one_of
from gateway.base.units import format_count
from gateway.config.registry import Registry
from gateway.config.routes import is_forward
from gateway.ledger.bulk import (
    RESOLVE,
    Action,
    BulkOperation,
    BulkStatus,
    EffectPolicy,
    NewBulkOperation,
    Session,
    StepContext,
    begin_bulk,
    find_bulk,
    read_clock,
    resume_bulk,
    routes_of,
    step,
)
from gateway.ledger.connection import LOST, QUERIES, Executor, describe
from gateway.ledger.deliveries import NO_EFFECTS, KnownEffects
from gateway.ledger.filter import Filter
from gateway.ledger.walk import Stepped, walk
from gateway.operations.context import OperationContext

MOST_GROUPS: Final = 100
MOST_NAMED: Final = 3
AWAY_S: Final = 1.0

log = structlog.get_logger("gateway.bulk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The rows that match a filter."""

    total: int = 0
    without_payload: int = 0
    groups: Sequence[Any] = ()
    """The largest groups."""
    effects: KnownEffects = NO_EFFECTS
    """The recorded effects of the matching deliveries. Only counted for a replay."""
    is_whole: bool = True
    """False if only part of the rows was examined, so there may be more matches."""


async def count_dead(
    ledger: Executor, filter: Filter, as_of: datetime, limit: int, *, look_at: int | None = None
) -> Count:
    """Count dead letters, grouped by route, handler and common error.

    `look_at` limits the count to the newest dead letters.
    """
    rows = await ledger.fetch(
        QUERIES["group_dead"], *filter.of_dead, as_of, limit, filter.cause, look_at
    )
    beyond = look_at is not None and await ledger.fetchval(
        QUERIES["has_dead_beyond"], filter.since, filter.until, as_of, look_at
    )
    return Count(
        is_whole=not beyond,
        total=rows[0]["total"] if rows else 0,
        without_payload=rows[0]["without_payload"] if rows else 0,
        groups=[_group(row) for row in rows],
    )


async def count_dead_effects(ledger: Executor, filter: Filter, as_of: datetime) -> KnownEffects:
    """Count the effects of dead letters that match."""
    [row] = await ledger.fetch(QUERIES["count_dead_effects"], *filter.of_dead, as_of, filter.cause)
    return KnownEffects(row["kept"], row["unknown"])


async def count_unknown_effects(
    ledger: Executor, filter: Filter, as_of: datetime, limit: int
) -> Count:
    """Count effects of unknown outcome by route, handler, name and how the call ended."""
    rows = await ledger.fetch(QUERIES["group_unknown_effects"], *filter.of_effects, as_of, limit)
    return Count(
        total=rows[0]["total"] if rows else 0,
        without_payload=rows[0]["without_payload"] if rows else 0,
        groups=[_group(row) for row in rows],
    )


async def count_undelivered(
    ledger: Executor, filter: Filter, as_of: datetime, registry: Registry
) -> Count:
    """Count events that the handler would take but has no delivery for, by route and type."""
    arguments = _of_undelivered(filter, as_of, registry)
    handler = filter.handler or ""
    rows = await ledger.fetch(QUERIES["count_undelivered"], *arguments)
    taken = [row for row in rows if handler in registry.for_event(row["route"], row["type"])]
    return Count(
        total=sum(row["count"] for row in taken),
        without_payload=sum(row["without_payload"] for row in taken),
        groups=[_group(row) for row in taken[:MOST_GROUPS]],
    )


def _of_undelivered(filter: Filter, as_of: datetime, registry: Registry) -> tuple[Any, ...]:
    routes, handler = _subscribed(filter, registry)
    span = (filter.since, filter.until, as_of)
    return routes, handler, *span, filter.type_pattern, filter.account


async def refuse_done(
    ledger: Executor,
    filter: Filter,
    as_of: datetime,
    registry: Registry,
    *,
    lately: timedelta,
    names: Names,
) -> None:
    """Raise CommandFailed if the events were already done by a handler that has no worker now.

    Most likely that is the same handler under its old name. `lately` is the maximum age of a
    heartbeat for a worker to count as alive.
    """
    handler = filter.handler or ""
    arguments = _of_undelivered(filter, as_of, registry)
    rows = await ledger.fetch(QUERIES["count_done_by_others"], *arguments)
    workers = await ledger.fetch(QUERIES["list_workers"], lately)
    served = {tuple(pair.split(" ", 1)) for worker in workers for pair in worker["handlers"]}
    served |= {item.key for item in registry.subscriptions}
    gone: Counter[str] = Counter()
    for row in rows:
        is_taken = handler in registry.for_event(row["route"], row["type"])
        if is_taken and (row["route"], row["handler"]) not in served:
            gone[row["handler"]] += row["count"]
    if gone:
        raise CommandFailed(_done_before(handler, gone, names))


def _done_before(handler: str, gone: Counter[str], names: Names) -> str:
    done = "; ".join(
        f"{format_count(count, 'event was', 'events were')} done by {names.handlers.label(name)}"
        for name, count in gone.most_common(MOST_NAMED)
    )
    again = f"{names.handlers.label(handler)} would do them again"
    told = f"{done}, which no worker has any more: {again}."
    renamed = [name for name in gone if not is_forward(name)][:1]
    if renamed and not is_forward(handler):
        told += (
            " If it is the same handler under a new name, write"
            f' formerly=["{names.handlers.label(renamed[0])}"] at its @handler and restart the'
            " workers: then there is nothing to deliver."
        )
    return f"{told} If these events are to run for it all the same: --as-new (as_new in the API)"


GROUP: Final = (
    "count", "route", "handler", "type", "error", "first_at", "last_at", "delivery_id",
)  # fmt: skip


def _group(row: Any) -> dict[str, Any]:
    return {name: row[name] for name in GROUP} | {"effect": row.get("effect")}


def _subscribed(filter: Filter, registry: Registry) -> tuple[list[str], str]:
    """Return the routes to which the handler is subscribed, and its name.

    Raises NotFound if there is no such handler.
    """
    handler = filter.handler or ""
    routes = routes_of(registry, handler, filter.route)
    if not routes:
        where = "no route has" if filter.route is None else f"route {filter.route!r} has not"
        known = one_of({item.label for item in registry.subscriptions}, like=handler)
        raise NotFound(f"{where} the handler {handler!r}; expected {known}")
    return routes, handler


async def count_matching(
    ledger: Executor,
    action: Action,
    filter: Filter,
    as_of: datetime,
    registry: Callable[[], Registry],
) -> Count:
    """Count the rows to which a bulk operation would apply."""
    if action is Action.DELIVER:
        return await count_undelivered(ledger, filter, as_of, registry())
    if action in RESOLVE:
        return await count_unknown_effects(ledger, filter, as_of, MOST_GROUPS)
    count = await count_dead(ledger, filter, as_of, MOST_GROUPS)
    if action is not Action.REPLAY or not count.total:
        return count
    return replace(count, effects=await count_dead_effects(ledger, filter, as_of))


def effects_ahead(effects: str, kept: int, unknown: int) -> str | None:
    """Describe what a replay would do about recorded effects, or return None if there are none."""
    parts = []
    if kept:
        done = format_count(kept, "effect that was done is", "effects that were done are")
        parts.append(f"{done} not made again")
    if unknown and effects == "retry":
        parts.append(f"{_unknown(unknown)} will be made again")
    elif unknown:
        parts.append(
            f"{_unknown(unknown)} will not be made again if the handler says"
            ' unknown="skip" (--effects retry makes them again)'
        )
    return "; ".join(parts) or None


def effects_report(effects: str, kept: int, unknown: int) -> str:
    """Describe what a replay did about recorded effects, as the end of a sentence."""
    parts = []
    if kept:
        parts.append(f"{format_count(kept, 'effect')} done before: not made again")
    if unknown:
        fate = "to be made again" if effects == "retry" else "left to the handler"
        parts.append(f"{_unknown(unknown)}: {fate}")
    return "".join(f"; {part}" for part in parts)


def _unknown(count: int) -> str:
    return format_count(count, "effect of unknown outcome", "effects of unknown outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The result of `begin`."""

    as_of: datetime
    count: Count
    bulk: BulkOperation | None
    """None after a dry run, or if nothing matches."""


async def begin(
    context: OperationContext,
    action: Action,
    filter: Filter,
    *,
    as_of: datetime | None,
    rate: int | None,
    reason: str | None,
    dry_run: bool,
    effects: EffectPolicy = EffectPolicy.KEEP,
) -> Begun:
    """Count the matching rows, and begin a bulk operation on them unless it is a dry run."""
    as_of = await read_clock(context.ledger, as_of)
    count = await count_matching(
        context.ledger, action, filter, as_of, lambda: context.project.registry
    )
    if dry_run or not count.total:
        return Begun(as_of=as_of, count=count, bulk=None)
    new = NewBulkOperation(
        action=action,
        filter=filter,
        actor=context.actor,
        reason=reason,
        rate=rate,
        as_of=as_of,
        total=count.total,
        effects=effects,
    )
    bulk = await begin_bulk(context.ledger, new)
    _run_in_background(context, bulk)
    return Begun(as_of=as_of, count=count, bulk=bulk)


async def resume(
    context: OperationContext, bulk_id: int, *, reason: str | None, rate: int | None
) -> BulkOperation:
    """Resume a bulk operation that is stopped or idle."""
    found = await find_bulk(context.ledger, bulk_id)
    if found["action"] is Action.DELIVER:
        _ = context.project  # load the project, so that an invalid one is reported now
    bulk = await resume_bulk(context.ledger, bulk_id, actor=context.actor, reason=reason, rate=rate)
    _run_in_background(context, bulk)
    return bulk


def _run_in_background(context: OperationContext, bulk: BulkOperation) -> None:
    """Run the operation in the background of a `serve`. A command runs it with `runner`."""
    if context.background is not None:
        work = runner(context).run_to_end(bulk)
        context.background.start(work, name=f"bulk operation {bulk['bulk_id']}")


def runner(context: OperationContext) -> "BulkRunner":
    """Return a runner with the dependencies of the context."""

    @asynccontextmanager
    async def session() -> AsyncIterator[Session]:
        lock = nullcontext() if context.background is None else context.background.lock
        async with lock, context.session() as connection:
            yield connection

    means = StepContext(
        registry=lambda: context.project.registry, encryption=lambda: context.encryption
    )
    return BulkRunner(session=session, wake=context.wake, means=means)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRunner:
    """Runs a bulk operation, in a command or in the background of a `serve`."""

    session: Callable[[], AbstractAsyncContextManager[Session]]
    wake: Callable[[Sequence[int]], Awaitable[None]]
    means: StepContext

    async def run(self, bulk: BulkOperation) -> AsyncGenerator[BulkOperation, None]:
        """Run the operation until it is done or stopped, and yield its state after each step.

        Raises CommandFailed if another process has resumed it in the meantime.
        """
        waker, name = _Waker(self.wake), f"bulk operation {bulk['bulk_id']}"

        async def one_step(bulk_id: int) -> Stepped[BulkOperation, int]:
            async with self.session() as connection:
                done = await step(connection, bulk_id, bulk["resumed"], self.means)
            if not done.is_ours:
                raise CommandFailed(f"{name} was resumed by another process, which runs it now")
            waker.start(done.due)
            is_running = done.bulk["status"] is BulkStatus.RUNNING
            return Stepped(done.bulk, bulk_id if is_running else None, done.moved)

        steps = walk(one_step, bulk["bulk_id"], what=name, rate=bulk["rate"])
        try:
            async with aclosing(steps):
                async for stepped in steps:
                    yield stepped.done
        finally:
            await waker.finish()

    async def run_to_end(self, bulk: BulkOperation) -> None:
        """Run the operation in the background, and retry while the ledger is unavailable."""
        id, status = bulk["bulk_id"], bulk["status"]
        while True:
            try:
                async with aclosing(self.run(bulk)) as steps:
                    async for stepped in steps:
                        status = stepped["status"]
            except LOST as error:
                log.warning("bulk_delayed", bulk_id=id, error=describe(error))
                await asyncio.sleep(AWAY_S)
            except CommandFailed as error:
                log.info("bulk_left", bulk_id=id, reason=str(error))
                return
            else:
                log.info("bulk_ended", bulk_id=id, status=status)
                return


class _Waker:
    """Sends wake-ups in the background, one batch at a time.

    A batch is skipped if the one before is still being sent: workers find those deliveries by
    polling.
    """

    def __init__(self, wake: Callable[[Sequence[int]], Awaitable[None]]) -> None:
        self._wake = wake
        self._sending: asyncio.Task[None] | None = None

    def start(self, delivery_ids: Sequence[int]) -> None:
        if delivery_ids and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send(delivery_ids))

    async def _send(self, delivery_ids: Sequence[int]) -> None:
        await self._wake(delivery_ids)

    async def finish(self) -> None:
        if self._sending is not None:
            await self._sending
