"""Bulk operations: count, start, watch, stop and resume them."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import Annotated, Literal

from pydantic import Field

from gateway.api.operation import Operation, OperationContext, Params
from gateway.api.operations.dead import DeadFilter, groups_of
from gateway.api.parameters import INTEGER, Cursor, FilterParams, Page, PageParams, RowId, Text
from gateway.api.shapes import BulkAnswer, BulkRow
from gateway.base.times import Moment
from gateway.config.registry import Registry
from gateway.ledger.bulk import (
    Action,
    BulkOperation,
    EffectPolicy,
    NewBulkOperation,
    begin_order,
    find_order,
    list_orders,
    read_clock,
    resume_order,
    stop_order,
)
from gateway.ledger.filter import Filter
from gateway.ledger.steps import Session, StepContext
from gateway.operations.bulk import BulkRunner, count_matching, refuse_done
from gateway.worker.sweeper import MISSED_ROUNDS

OrderId = Annotated[RowId, Field(description="The id of an order.")]
PerSecond = Annotated[int, Field(strict=True, ge=1, le=100_000), INTEGER]
Rate = Annotated[PerSecond | None, Field(description="So many a second.")]
Why = Annotated[Text | None, Field(description="Why, for the audit log.")]
PLACE = Cursor("order_id", values=tuple[Annotated[int, Field(ge=0, le=2**63 - 1)]])


EffectsChoice = Annotated[
    Literal["keep", "retry"],
    Field(
        description="Of a replay: leave effects of unknown outcome as they are, or make them again."
    ),
]


class BulkOptionsParams(Params):
    """Options of a bulk operation."""

    rate: Rate = None
    reason: Why = None
    dry_run: Annotated[bool, Field(strict=True, description="Only count what matches.")] = False
    as_of: Annotated[
        Moment | None,
        Field(description="Only what matched by then: what a dry run answered as `as_of`."),
    ] = None


class BeginBulkParams(BulkOptionsParams, DeadFilter):
    """The dead letters, and the action on them."""

    action: Annotated[Literal["replay", "discard"], Field(description="What to do to them.")]
    effects: EffectsChoice = "keep"


class DeliverParams(BulkOptionsParams, FilterParams):
    """The events, and the handler to deliver them to."""

    handler: Annotated[Text, Field(description="To this handler.")]
    since: Annotated[Moment, Field(description="Not before: 7d (ago), or a time.")]
    as_new: Annotated[
        bool,
        Field(
            strict=True,
            description="Also events that a handler has done which no worker has any more.",
        ),
    ] = False


class BulkIdParams(Params):
    """The bulk operation."""

    order_id: OrderId


class StopBulkParams(BulkIdParams):
    """The bulk operation to stop, and the reason."""

    reason: Why = None


class ResumeBulkParams(StopBulkParams):
    """The bulk operation to resume, the reason, and the new rate."""

    rate: Rate = None


async def _begin(office: OperationContext, params: BeginBulkParams) -> BulkAnswer:
    effects = EffectPolicy(params.effects)
    return await begin(office, Action(params.action), params.filter, params, effects)


async def _deliver(office: OperationContext, params: DeliverParams) -> BulkAnswer:
    as_of = await read_clock(office.ledger, params.as_of)
    if not params.as_new:
        await refuse_done(
            office.ledger,
            params.filter,
            as_of,
            office.project.registry,
            lately=office.settings.sweep * MISSED_ROUNDS,
            names=office.names,
        )
    return await begin(
        office, Action.DELIVER, params.filter, params.model_copy(update={"as_of": as_of})
    )


async def begin(
    office: OperationContext,
    action: Action,
    filter: Filter,
    params: BulkOptionsParams,
    effects: EffectPolicy = EffectPolicy.KEEP,
) -> BulkAnswer:
    """Count the matching rows, and start a bulk operation on them unless it is a dry run."""
    as_of = await read_clock(office.ledger, params.as_of)
    count = await count_matching(office.ledger, action, filter, as_of, _registry(office))
    order = None
    if count.total and not params.dry_run:
        new = NewBulkOperation(
            action=action,
            filter=filter,
            actor=office.actor,
            reason=params.reason,
            rate=params.rate,
            as_of=as_of,
            total=count.total,
            effects=effects,
        )
        order = await begin_order(office.ledger, new)
        _go_on(office, order)
    return {
        **groups_of(count, as_of),
        "order": None if order is None else row_of(order),
        "effects_kept": count.effects.kept,
        "effects_unknown": count.effects.unknown,
    }


async def _orders(office: OperationContext, params: PageParams) -> Page[BulkRow]:
    [after] = PLACE.read(params.after)
    orders = await list_orders(office.ledger, after, params.limit + 1)
    return PLACE.page([row_of(order) for order in orders], params.limit)


async def _show(office: OperationContext, params: BulkIdParams) -> BulkRow:
    return row_of(await find_order(office.ledger, params.order_id))


async def _stop(office: OperationContext, params: StopBulkParams) -> BulkRow:
    stopped = await stop_order(
        office.ledger, params.order_id, actor=office.actor, reason=params.reason
    )
    return row_of(stopped)


async def _resume(office: OperationContext, params: ResumeBulkParams) -> BulkRow:
    found = await find_order(office.ledger, params.order_id)
    if found.action is Action.DELIVER:
        _ = office.project  # load the project, so that an invalid one is reported now
    order = await resume_order(
        office.ledger, params.order_id, actor=office.actor, reason=params.reason, rate=params.rate
    )
    _go_on(office, order)
    return row_of(order)


def _go_on(office: OperationContext, order: BulkOperation) -> None:
    """Run the operation in the background of a `serve`. A command runs it with `carry_out`."""
    if office.background is not None:
        work = _carrier(office).keep_at(order.id, order.resumed)
        office.background.start(work, name=f"order {order.id}")


async def carry_out(office: OperationContext, order: BulkRow) -> AsyncGenerator[BulkRow, None]:
    """Run the operation in this process, and yield its state after each step."""
    steps = _carrier(office).carry_out(order["order_id"], order["resumed"])
    async with aclosing(steps) as orders:
        async for stepped in orders:
            yield row_of(stepped)


def _carrier(office: OperationContext) -> BulkRunner:
    @asynccontextmanager
    async def session() -> AsyncIterator[Session]:
        turn = nullcontext() if office.background is None else office.background.turn
        async with turn, office.session() as connection:
            yield connection

    means = StepContext(registry=_registry(office), encryption=lambda: office.encryption)
    return BulkRunner(session=session, wake=office.wake, means=means)


def _registry(office: OperationContext) -> Callable[[], Registry]:
    """Return a function that loads the registry. To replay dead letters no project is needed."""
    return lambda: office.project.registry


def row_of(order: BulkOperation) -> BulkRow:
    """Convert a bulk operation to the result of an operation."""
    return {
        "order_id": order.id,
        "action": order.action.value,
        "filter": order.filter.given,
        "status": order.status.value,
        "is_idle": order.is_idle,
        "total": order.total,
        "moved": order.moved,
        "skipped": order.skipped,
        "rate": order.rate,
        "effects": order.effects.value,
        "effects_kept": order.effects_kept,
        "effects_unknown": order.effects_unknown,
        "actor": order.actor,
        "reason": order.reason,
        "began_at": order.began_at,
        "stepped_at": order.stepped_at,
        "finished_at": order.finished_at,
        "resumed": order.resumed,
    }


ORDERS = Operation(
    name="orders",
    method="GET",
    path="/orders",
    summary="Orders for everything that matches a filter, newest first, and how far each has come.",
    params=PageParams,
    result=Page[BulkRow],
    run=_orders,
)
BEGIN_ORDER = Operation(
    name="begin_order",
    method="POST",
    path="/orders",
    summary="Replay or discard all dead letters that match, or only count them (dry_run).",
    params=BeginBulkParams,
    result=BulkAnswer,
    run=_begin,
)
DELIVER = Operation(
    name="deliver",
    method="POST",
    path="/orders/deliver",
    summary="Deliver events to a handler that had no delivery of them, or only count (dry_run).",
    params=DeliverParams,
    result=BulkAnswer,
    run=_deliver,
)
SHOW_ORDER = Operation(
    name="show_order",
    method="GET",
    path="/orders/{order_id}",
    summary="How far an order has come.",
    params=BulkIdParams,
    result=BulkRow,
    run=_show,
)
STOP_ORDER = Operation(
    name="stop_order",
    method="POST",
    path="/orders/{order_id}/stop",
    summary="Stop an order after its current step; what it did stays done.",
    params=StopBulkParams,
    result=BulkRow,
    run=_stop,
)
RESUME_ORDER = Operation(
    name="resume_order",
    method="POST",
    path="/orders/{order_id}/resume",
    summary="Go on with an order that was stopped, or whose process is gone.",
    params=ResumeBulkParams,
    result=BulkRow,
    run=_resume,
)
