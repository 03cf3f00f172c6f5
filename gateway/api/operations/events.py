"""Events and single deliveries: to look at, to run again, to give up."""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.api.filters import FilterParams
from gateway.api.office import Office
from gateway.api.operation import Operation, Params
from gateway.api.paging import Cursor, Page, PageParams
from gateway.api.shapes import EventDetail, EventRow, ReplayedAnswer
from gateway.api.values import Id, RowId, Text
from gateway.errors import NotFound
from gateway.failpoints import reached
from gateway.ledger.deliveries import count_effects, discard, replay
from gateway.model import Status
from gateway.notation.moments import UtcTime
from gateway.operate.inspect import Row, find, list_events
from gateway.operate.reveal import hide, reveal

DeliveryId = Annotated[RowId, Field(description="The id of a delivery.")]
Words = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
PLACE = Cursor("received_at", "route", "event_id", values=tuple[UtcTime, Words, Words])


class EventsParams(PageParams, FilterParams):
    """Which events, and which part of their listing."""

    status: Annotated[
        Status | None, Field(description="Only where a delivery is so: dead, pending, ...")
    ] = None
    object: Annotated[
        Text | None,
        Field(description="Only about this: an id as in data.object.id, or acme/shop#42."),
    ] = None


class ShowParams(Params):
    """Which event."""

    id: Annotated[Id, Field(description="An event id, or the id of one of its deliveries.")]
    route: Annotated[Text | None, Field(description="Only on this route.")] = None


class RevealParams(ShowParams):
    """Which event, and why."""

    reason: Annotated[Text | None, Field(description="Why, for the audit log.")] = None


class OrderParams(Params):
    """Which delivery, and why."""

    delivery_id: DeliveryId
    reason: Annotated[Text | None, Field(description="Why, for the audit log.")] = None


class ReplayParams(OrderParams):
    """Which delivery to run again, what to do about its effects, and why."""

    effects: Annotated[
        Literal["keep", "retry"],
        Field(description="Leave effects of unknown outcome as they are, or make them again."),
    ] = "keep"
    dry_run: Annotated[
        bool, Field(strict=True, description="Only count its effects; run nothing.")
    ] = False


async def _events(office: Office, params: EventsParams) -> Page[EventRow]:
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


async def _show(office: Office, params: ShowParams) -> list[EventDetail]:
    found = [hide(event) for event in await _find(office, params)]
    return await asyncio.to_thread(_seen, office, found)


async def _reveal(office: Office, params: RevealParams) -> list[EventDetail]:
    found, ring = await _find(office, params), office.vault.ring
    shown = await reveal(office.ledger, found, ring, actor=office.actor, reason=params.reason)
    return await asyncio.to_thread(_seen, office, shown)


def _seen(office: Office, events: Sequence[Row]) -> list[EventDetail]:
    """As people may see them; in a thread, since a body of megabytes would hold up webhooks."""
    return [_readable(office.shown(event)) for event in events]


async def _find(office: Office, params: ShowParams) -> list[Row]:
    found = await find(office.ledger, params.id, params.route)
    if not found:
        raise NotFound(f"there is no event or delivery {params.id!r}" + _on(params.route))
    return found


def _on(route: str | None) -> str:
    return "" if route is None else f" on route {route!r}"


def _readable(event: dict[str, Any]) -> EventDetail:
    """With its bytes as text; and as they are, where they are no text."""
    body, exact = event["body"], None
    if body is not None:
        try:
            body = body.decode()
        except UnicodeDecodeError:
            body, exact = body.decode("utf-8", "backslashreplace"), b64encode(body).decode()
    detail: EventDetail = event | {"body": body, "body_base64": exact}  # type: ignore[assignment]
    return detail


async def _replay(office: Office, params: ReplayParams) -> ReplayedAnswer:
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


async def _discard(office: Office, params: OrderParams) -> dict[str, int]:
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
    params=OrderParams,
    result=dict[str, int],
    run=_discard,
)
