"""Events and single deliveries: list, show, replay and discard; and the audit log."""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.api.operation import Operation, Params
from gateway.api.parameters import BY_ID, Cursor, FilterParams, Id, Page, PageParams, RowId, Text
from gateway.api.shapes import AuditRow, EventDetail, EventRow, ReplayedAnswer
from gateway.base.errors import NotFound
from gateway.base.failpoints import reached
from gateway.base.model import Status
from gateway.base.times import UtcTime
from gateway.ledger.deliveries import count_effects, discard, replay
from gateway.operations.context import OperationContext
from gateway.operations.encryption import hide, reveal
from gateway.operations.inspect import Row, find, list_audit, list_events

DeliveryId = Annotated[RowId, Field(description="The id of a delivery.")]
Words = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
PLACE = Cursor("received_at", "route", "event_id", values=tuple[UtcTime, Words, Words])


class EventsParams(PageParams, FilterParams):
    """Filter and page of a listing of events."""

    status: Annotated[
        Status | None, Field(description="Only where a delivery is so: dead, pending, ...")
    ] = None
    object: Annotated[
        Text | None,
        Field(description="Only about this: an id as in data.object.id, or acme/shop#42."),
    ] = None


class EventParams(Params):
    """The event."""

    id: Annotated[Id, Field(description="An event id, or the id of one of its deliveries.")]
    route: Annotated[Text | None, Field(description="Only on this route.")] = None


class ShowParams(EventParams):
    """The event, and a filter for its deliveries."""

    handler: Annotated[Text | None, Field(description="Only its deliveries of this handler.")] = (
        None
    )


class RevealParams(EventParams):
    """The event to decrypt, and the reason."""

    reason: Annotated[Text | None, Field(description="Why, for the audit log.")] = None


class DeliveryParams(Params):
    """The delivery, and the reason for the action."""

    delivery_id: DeliveryId
    reason: Annotated[Text | None, Field(description="Why, for the audit log.")] = None


class ReplayParams(DeliveryParams):
    """The delivery to replay, what to do about its effects, and the reason."""

    effects: Annotated[
        Literal["keep", "retry"],
        Field(description="Leave effects of unknown outcome as they are, or make them again."),
    ] = "keep"
    dry_run: Annotated[
        bool, Field(strict=True, description="Only count its effects; run nothing.")
    ] = False


async def _events(office: OperationContext, params: EventsParams) -> Page[EventRow]:
    mark = PLACE.read(params.after)
    listed = await list_events(
        office.ledger,
        params.filter,
        mark,
        params.limit + 1,
        status=params.status,
        object_id=params.object,
    )
    return PLACE.page(listed.rows, params.limit, end=listed.end)


async def _show(office: OperationContext, params: ShowParams) -> list[EventDetail]:
    found = [hide(event) for event in await _find(office, params)]
    if params.handler is not None:
        for event in found:
            event["deliveries"] = [
                one for one in event["deliveries"] if one["handler"] == params.handler
            ]
    return await asyncio.to_thread(_seen, office, found)


async def _reveal(office: OperationContext, params: RevealParams) -> list[EventDetail]:
    found, ring = await _find(office, params), office.encryption.ring
    shown = await reveal(office.ledger, found, ring, actor=office.actor, reason=params.reason)
    return await asyncio.to_thread(_seen, office, shown)


def _seen(office: OperationContext, events: Sequence[Row]) -> list[EventDetail]:
    """Apply redaction. Call it in a thread, because a body of megabytes would delay webhooks."""
    return [_readable(office.shown(event)) for event in events]


async def _find(office: OperationContext, params: EventParams) -> list[Row]:
    found = await find(office.ledger, params.id, params.route)
    if not found:
        route = None if params.route is None else office.names.routes.label(params.route)
        raise NotFound(f"there is no event or delivery {params.id!r}" + _on(route))
    return found


def _on(route: str | None) -> str:
    return "" if route is None else f" on route {route!r}"


def _readable(event: dict[str, Any]) -> EventDetail:
    """Decode the body as text, and add it as base64 if it is not valid UTF-8."""
    body, exact = event["body"], None
    if body is not None:
        try:
            body = body.decode()
        except UnicodeDecodeError:
            body, exact = body.decode("utf-8", "backslashreplace"), b64encode(body).decode()
    detail: EventDetail = event | {"body": body, "body_base64": exact}  # type: ignore[assignment]
    return detail


async def _replay(office: OperationContext, params: ReplayParams) -> ReplayedAnswer:
    if params.dry_run:
        effects = await count_effects(office.ledger, params.delivery_id)
    else:
        replayed = await replay(
            office.ledger,
            params.delivery_id,
            actor=office.actor,
            reason=params.reason,
            retry_effects=params.effects == "retry",
        )
        reached("replay.marked")
        await office.wake(replayed.due)
        effects = replayed.effects
    return {
        "delivery_id": params.delivery_id,
        "effects": params.effects,
        "effects_kept": effects.kept,
        "effects_unknown": effects.unknown,
    }


async def _discard(office: OperationContext, params: DeliveryParams) -> dict[str, int]:
    due = await discard(office.ledger, params.delivery_id, actor=office.actor, reason=params.reason)
    reached("replay.marked")
    await office.wake(due)
    return {"delivery_id": params.delivery_id}


EVENTS = Operation(
    name="events",
    method="GET",
    path="/events",
    summary="Events, newest first, with how their deliveries stand.",
    params=EventsParams,
    result=Page[EventRow],
    run=_events,
)
SHOW = Operation(
    name="show",
    method="GET",
    path="/events/{id:path}",
    summary="Events with this id, with their deliveries, every attempt, effects and audit.",
    params=ShowParams,
    result=list[EventDetail],
    run=_show,
)
REVEAL = Operation(
    name="reveal",
    method="POST",
    path="/reveal",
    summary="The same, with what is kept encrypted of it; leaves an audit row.",
    params=RevealParams,
    result=list[EventDetail],
    run=_reveal,
)
REPLAY = Operation(
    name="replay",
    method="POST",
    path="/deliveries/{delivery_id}/replay",
    summary="Run a delivery again, now, with a fresh round of attempts.",
    params=ReplayParams,
    result=ReplayedAnswer,
    run=_replay,
)
DISCARD = Operation(
    name="discard",
    method="POST",
    path="/deliveries/{delivery_id}/discard",
    summary="Give a delivery up.",
    params=DeliveryParams,
    result=dict[str, int],
    run=_discard,
)


async def _audit(office: OperationContext, params: PageParams) -> Page[AuditRow]:
    [after] = BY_ID.read(params.after)
    rows = await list_audit(office.ledger, after, params.limit + 1)
    return BY_ID.page(rows, params.limit)


AUDIT = Operation(
    name="audit",
    method="GET",
    path="/audit",
    summary="What people and retention did, newest first.",
    params=PageParams,
    result=Page[AuditRow],
    run=_audit,
)
