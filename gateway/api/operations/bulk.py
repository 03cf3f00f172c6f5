"""Bulk operations: count, begin, watch, stop and resume them."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.api.operation import Operation, Params
from gateway.api.operations.dead import DeadFilter, groups_of
from gateway.api.parameters import INTEGER, Cursor, FilterParams, Page, PageParams, RowId, Text
from gateway.api.shapes import BulkAnswer
from gateway.base.times import Moment
from gateway.ledger.bulk import (
    Action,
    BulkOperation,
    EffectPolicy,
    find_bulk,
    list_bulk,
    read_clock,
    stop_bulk,
)
from gateway.ledger.filter import Filter
from gateway.operations.bulk import begin, refuse_done, resume
from gateway.operations.context import OperationContext
from gateway.worker.sweeper import MISSED_ROUNDS

BulkId = Annotated[RowId, Field(description="The id of a bulk operation.")]
PerSecond = Annotated[int, Field(strict=True, ge=1, le=100_000), INTEGER]
Rate = Annotated[PerSecond | None, Field(description="At most so many a second.")]
Why = Annotated[Text | None, Field(description="Why, for the audit log.")]
CURSOR = Cursor("bulk_id", values=tuple[Annotated[int, Field(ge=0, le=2**63 - 1)]])


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

    bulk_id: BulkId


class StopBulkParams(BulkIdParams):
    """The bulk operation to stop, and the reason."""

    reason: Why = None


class ResumeBulkParams(StopBulkParams):
    """The bulk operation to resume, the reason, and the new rate."""

    rate: Rate = None


async def begin_all(
    context: OperationContext,
    action: Action,
    filter: Filter,
    params: BulkOptionsParams,
    effects: EffectPolicy = EffectPolicy.KEEP,
) -> BulkAnswer:
    """Begin a bulk operation with the options that all of them have."""
    begun = await begin(
        context,
        action,
        filter,
        as_of=params.as_of,
        rate=params.rate,
        reason=params.reason,
        dry_run=params.dry_run,
        effects=effects,
    )
    return {
        **groups_of(begun.count, begun.as_of),
        "bulk": begun.bulk,
        "effects_kept": begun.count.effects.kept,
        "effects_unknown": begun.count.effects.unknown,
    }


async def _begin(context: OperationContext, params: BeginBulkParams) -> BulkAnswer:
    effects = EffectPolicy(params.effects)
    return await begin_all(context, Action(params.action), params.filter, params, effects)


async def _deliver(context: OperationContext, params: DeliverParams) -> BulkAnswer:
    as_of = await read_clock(context.ledger, params.as_of)
    if not params.as_new:
        await refuse_done(
            context.ledger,
            params.filter,
            as_of,
            context.project.registry,
            lately=context.settings.sweep * MISSED_ROUNDS,
            names=context.names,
        )
    timed = params.model_copy(update={"as_of": as_of})
    return await begin_all(context, Action.DELIVER, params.filter, timed)


async def _list(context: OperationContext, params: PageParams) -> Page[BulkOperation]:
    [after] = CURSOR.read(params.after)
    return CURSOR.page(await list_bulk(context.ledger, after, params.limit + 1), params.limit)


async def _show(context: OperationContext, params: BulkIdParams) -> BulkOperation:
    return await find_bulk(context.ledger, params.bulk_id)


async def _stop(context: OperationContext, params: StopBulkParams) -> BulkOperation:
    return await stop_bulk(
        context.ledger, params.bulk_id, actor=context.actor, reason=params.reason
    )


async def _resume(context: OperationContext, params: ResumeBulkParams) -> BulkOperation:
    return await resume(context, params.bulk_id, reason=params.reason, rate=params.rate)


LIST_BULK = Operation(
    name="bulk",
    method="GET",
    path="/bulk",
    summary="Bulk operations, newest first, with their progress.",
    params=PageParams,
    result=Page[BulkOperation],
    run=_list,
)
BEGIN_BULK = Operation(
    name="begin_bulk",
    method="POST",
    path="/bulk",
    summary="Replay or discard all dead letters that match, or only count them (dry_run).",
    params=BeginBulkParams,
    result=BulkAnswer,
    run=_begin,
)
DELIVER = Operation(
    name="deliver",
    method="POST",
    path="/bulk/deliver",
    summary="Deliver events to a handler that had no delivery of them, or only count (dry_run).",
    params=DeliverParams,
    result=BulkAnswer,
    run=_deliver,
)
SHOW_BULK = Operation(
    name="show_bulk",
    method="GET",
    path="/bulk/{bulk_id}",
    summary="One bulk operation with its progress.",
    params=BulkIdParams,
    result=BulkOperation,
    run=_show,
)
STOP_BULK = Operation(
    name="stop_bulk",
    method="POST",
    path="/bulk/{bulk_id}/stop",
    summary="Stop a bulk operation after its current step; completed steps are not undone.",
    params=StopBulkParams,
    result=BulkOperation,
    run=_stop,
)
RESUME_BULK = Operation(
    name="resume_bulk",
    method="POST",
    path="/bulk/{bulk_id}/resume",
    summary="Resume a bulk operation that was stopped, or whose process is gone.",
    params=ResumeBulkParams,
    result=BulkOperation,
    run=_resume,
)
