"""Effects of unknown outcome: list and resolve them."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.api.operation import Operation, Params
from gateway.api.operations.bulk import BulkOptionsParams, begin_all
from gateway.api.operations.dead import groups_of
from gateway.api.operations.events import DeliveryId
from gateway.api.parameters import LONGEST_PAGE, Cursor, FilterParams, Page, PageParams, Text
from gateway.api.shapes import BulkAnswer, Groups, ResolvedEffects, UnknownEffect
from gateway.base.times import UtcTime
from gateway.ledger.bulk import Action, read_clock
from gateway.ledger.effects import confirm_effects, retry_effects
from gateway.operations.bulk import count_unknown_effects
from gateway.operations.context import OperationContext
from gateway.operations.inspect import list_unknown_effects

PLACE = Cursor(
    "unknown_at",
    "delivery_id",
    "name",
    values=tuple[UtcTime, Annotated[int, Field(ge=0, le=2**63 - 1)], Text],
)


class EffectsFilter(FilterParams):
    """Filter for effects of unknown outcome."""

    error: Annotated[
        Text | None,
        Field(description="Only where the error has this text (HTTPStatusError 500); * is a glob."),
    ] = None
    effect: Annotated[Text | None, Field(description="Only effects of this name.")] = None


class EffectsParams(PageParams, EffectsFilter):
    """Filter and page of a listing of effects of unknown outcome."""


class EffectGroupParams(EffectsFilter):
    """Filter for effects of unknown outcome to count."""

    limit: Annotated[
        int, Field(ge=1, le=LONGEST_PAGE, description="How many groups at the most.")
    ] = 100


class ResolveParams(Params):
    """The effects of a delivery to resolve, and the reason."""

    delivery_id: DeliveryId
    effect: Annotated[
        Text | None, Field(description="Only the effect of this name; else all that are unknown.")
    ] = None
    reason: Annotated[Text | None, Field(description="Why, for the audit log.")] = None


class ResolveAllParams(BulkOptionsParams, EffectsFilter):
    """Filter for effects of unknown outcome, and the action on them."""

    action: Annotated[
        Literal["retry", "confirm"],
        Field(description="Make them again, or count them as done."),
    ]


async def _effects(office: OperationContext, params: EffectsParams) -> Page[UnknownEffect]:
    listed = await list_unknown_effects(
        office.ledger, params.filter, PLACE.read(params.after), params.limit + 1
    )
    return PLACE.page(listed.rows, params.limit, end=listed.end)


async def _groups(office: OperationContext, params: EffectGroupParams) -> Groups:
    as_of = await read_clock(office.ledger, None)
    count = await count_unknown_effects(office.ledger, params.filter, as_of, params.limit)
    return groups_of(count, as_of)


async def _retry(office: OperationContext, params: ResolveParams) -> ResolvedEffects:
    names, due = await retry_effects(
        office.ledger, params.delivery_id, params.effect, actor=office.actor, reason=params.reason
    )
    await office.wake(due)
    return {"delivery_id": params.delivery_id, "effects": names}


async def _confirm(office: OperationContext, params: ResolveParams) -> ResolvedEffects:
    names = await confirm_effects(
        office.ledger, params.delivery_id, params.effect, actor=office.actor, reason=params.reason
    )
    return {"delivery_id": params.delivery_id, "effects": names}


async def _resolve_all(office: OperationContext, params: ResolveAllParams) -> BulkAnswer:
    return await begin_all(office, Action(f"{params.action}_effects"), params.filter, params)


EFFECTS = Operation(
    name="effects",
    method="GET",
    path="/effects",
    summary="Outside effects of unknown outcome, newest first: a run went on without them.",
    params=EffectsParams,
    result=Page[UnknownEffect],
    run=_effects,
)
EFFECT_GROUPS = Operation(
    name="effect_groups",
    method="GET",
    path="/effects/groups",
    summary="Effects of unknown outcome by route, handler, name and how the call ended.",
    params=EffectGroupParams,
    result=Groups,
    run=_groups,
)
RETRY_EFFECTS = Operation(
    name="retry_effects",
    method="POST",
    path="/deliveries/{delivery_id}/effects/retry",
    summary="Run a delivery again and make its effects of unknown outcome again, and no others.",
    params=ResolveParams,
    result=ResolvedEffects,
    run=_retry,
)
CONFIRM_EFFECTS = Operation(
    name="confirm_effects",
    method="POST",
    path="/deliveries/{delivery_id}/effects/confirm",
    summary="Count the effects of unknown outcome of a delivery as done.",
    params=ResolveParams,
    result=ResolvedEffects,
    run=_confirm,
)
RESOLVE_ALL_EFFECTS = Operation(
    name="resolve_effects",
    method="POST",
    path="/bulk/effects",
    summary="Retry or confirm all effects of unknown outcome that match, or only count (dry_run).",
    params=ResolveAllParams,
    result=BulkAnswer,
    run=_resolve_all,
)
