"""Orders for everything that matches: counted, begun, watched, stopped and gone on with."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import Annotated, Literal

from pydantic import Field

from gateway.api.filters import FilterParams
from gateway.api.office import Office
from gateway.api.operation import Operation, Params
from gateway.api.operations.dead import DeadFilter, groups_of
from gateway.api.paging import Cursor, Page, PageParams
from gateway.api.shapes import Ordered, OrderRow
from gateway.api.values import INTEGER, RowId, Text
from gateway.ledger.bulk import (
    Action,
    Effects,
    NewOrder,
    Order,
    begin_order,
    find_order,
    list_orders,
    read_clock,
    resume_order,
    stop_order,
)
from gateway.ledger.filter import Filter
from gateway.ledger.steps import Means, Session
from gateway.notation.moments import Moment
from gateway.operate.bulk import Carrier, count_matching
from gateway.registry import Registry

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


class OrderingParams(Params):
    """How to go about everything that matches."""

    rate: Rate = None
    reason: Why = None
    dry_run: Annotated[bool, Field(strict=True, description="Only count what matches.")] = False
    as_of: Annotated[
        Moment | None,
        Field(description="Only what matched by then: what a dry run answered as `as_of`."),
    ] = None


class BeginParams(OrderingParams, DeadFilter):
    """What to do to which dead letters."""

    action: Annotated[Literal["replay", "discard"], Field(description="What to do to them.")]
    effects: EffectsChoice = "keep"


class DeliverParams(OrderingParams, FilterParams):
    """Which events to deliver to which handler."""

    handler: Annotated[Text, Field(description="To this handler.")]
    since: Annotated[Moment, Field(description="Not before: 7d (ago), or a time.")]


class OrderIdParams(Params):
    """Which order."""

    order_id: OrderId


class StopParams(OrderIdParams):
    """Which order, and why."""

    reason: Why = None


class ResumeParams(StopParams):
    """Which order, why, and how fast from now on."""

    rate: Rate = None


async def _begin(office: Office, params: BeginParams) -> Ordered:
    effects = Effects(params.effects)
    return await begin(office, Action(params.action), params.filter, params, effects)


async def _deliver(office: Office, params: DeliverParams) -> Ordered:
    return await begin(office, Action.DELIVER, params.filter, params)


async def begin(
    office: Office,
    action: Action,
    filter: Filter,
    params: OrderingParams,
    effects: Effects = Effects.KEEP,
) -> Ordered:
    """Count what matches and, unless only that was asked for, begin an order for it."""
    as_of = await read_clock(office.ledger, params.as_of)
    count = await count_matching(office.ledger, action, filter, as_of, _registry(office))
    order = None
    if count.total and not params.dry_run:
        new = NewOrder(
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


async def _orders(office: Office, params: PageParams) -> Page[OrderRow]:
    [after] = PLACE.read(params.after)
    orders = await list_orders(office.ledger, after, params.limit + 1)
    return PLACE.page([row_of(order) for order in orders], params.limit)


async def _show(office: Office, params: OrderIdParams) -> OrderRow:
    return row_of(await find_order(office.ledger, params.order_id))


async def _stop(office: Office, params: StopParams) -> OrderRow:
    stopped = await stop_order(
        office.ledger, params.order_id, actor=office.actor, reason=params.reason
    )
    return row_of(stopped)


async def _resume(office: Office, params: ResumeParams) -> OrderRow:
    found = await find_order(office.ledger, params.order_id)
    if found.action is Action.DELIVER:
        _ = office.project  # so that a broken one is told now
    order = await resume_order(
        office.ledger, params.order_id, actor=office.actor, reason=params.reason, rate=params.rate
    )
    _go_on(office, order)
    return row_of(order)


def _go_on(office: Office, order: Order) -> None:
    """In the background of a `serve`; a command carries its orders out itself (`carry_out`)."""
    if office.background is not None:
        work = _carrier(office).keep_at(order.id, order.resumed)
        office.background.start(work, name=f"order {order.id}")


async def carry_out(office: Office, order: OrderRow) -> AsyncGenerator[OrderRow, None]:
    """Carries an order out in this process; tells how it stands after each step."""
    steps = _carrier(office).carry_out(order["order_id"], order["resumed"])
    async with aclosing(steps) as orders:
        async for stepped in orders:
            yield row_of(stepped)


def _carrier(office: Office) -> Carrier:
    @asynccontextmanager
    async def session() -> AsyncIterator[Session]:
        turn = nullcontext() if office.background is None else office.background.turn
        async with turn, office.session() as connection:
            yield connection

    means = Means(registry=_registry(office), vault=lambda: office.vault)
    return Carrier(session=session, wake=office.wake, means=means)


def _registry(office: Office) -> Callable[[], Registry]:
    """Read when it is needed: to replay what is dead, a project need not even be there."""
    return lambda: office.project.registry


def row_of(order: Order) -> OrderRow:
    """An order as it is answered."""
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
    result=Page[OrderRow],
    run=_orders,
)
BEGIN_ORDER = Operation(
    name="begin_order",
    method="POST",
    path="/orders",
    summary="Replay or discard all dead letters that match, or only count them (dry_run).",
    params=BeginParams,
    result=Ordered,
    run=_begin,
)
DELIVER = Operation(
    name="deliver",
    method="POST",
    path="/orders/deliver",
    summary="Deliver events to a handler that had no delivery of them, or only count (dry_run).",
    params=DeliverParams,
    result=Ordered,
    run=_deliver,
)
SHOW_ORDER = Operation(
    name="show_order",
    method="GET",
    path="/orders/{order_id}",
    summary="How far an order has come.",
    params=OrderIdParams,
    result=OrderRow,
    run=_show,
)
STOP_ORDER = Operation(
    name="stop_order",
    method="POST",
    path="/orders/{order_id}/stop",
    summary="Stop an order after its current step; what it did stays done.",
    params=StopParams,
    result=OrderRow,
    run=_stop,
)
RESUME_ORDER = Operation(
    name="resume_order",
    method="POST",
    path="/orders/{order_id}/resume",
    summary="Go on with an order that was stopped, or whose process is gone.",
    params=ResumeParams,
    result=OrderRow,
    run=_resume,
)
