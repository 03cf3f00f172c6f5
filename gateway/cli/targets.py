"""Which deliveries `replay` and `discard` are about: named by their ids, or by an event's id."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.api.desk import Desk
from gateway.api.operations.events import SHOW, ShowParams
from gateway.api.shapes import DeliveryDetail, EventDetail
from gateway.cli.asking import given
from gateway.cli.output import printable
from gateway.errors import CommandFailed, NotFound
from gateway.model import Status

DELIVERY_ID: Final = re.compile(r"[0-9]+")
LARGEST_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Target:
    """A delivery that was named on the command line."""

    delivery_id: int
    handler: str | None = None
    """None if it was named by its own id."""
    left_alone: str | None = None
    """Its status, if the id does not stand for it because another delivery of the event is dead."""

    def __str__(self) -> str:
        named = f"delivery {self.delivery_id}"
        return named if self.handler is None else f"{named} ({printable(self.handler)})"


def is_delivery_id(text: str, route: str | None) -> bool:
    """Return whether an id is that of a delivery. With --route, all ids are those of events: an
    event's id may be a number, too."""
    return route is None and DELIVERY_ID.fullmatch(text) is not None


async def collect_targets(
    desk: Desk, ids: Sequence[str], *, route: str | None, handler: str | None
) -> tuple[list[Target], list[str]]:
    """Return the deliveries that the ids stand for, each once, and why others stand for none.

    An event's id stands for its dead deliveries, and for all of them if none is dead: a handler
    that is done does not run again only because another one failed.
    """
    targets: dict[int, Target] = {}
    refusals = []
    for id in ids:
        try:
            found = await _find(desk, id, route=route, handler=handler)
        except CommandFailed as refusal:
            refusals.append(str(refusal))
            continue
        for target in found:
            if target.left_alone is None or target.delivery_id not in targets:
                targets[target.delivery_id] = target
    return list(targets.values()), refusals


async def _find(desk: Desk, text: str, *, route: str | None, handler: str | None) -> list[Target]:
    if is_delivery_id(text, route):
        if not 1 <= int(text) <= LARGEST_ID:
            raise NotFound(f"there is no delivery {text}")
        return [Target(int(text))]
    event = await _find_event(desk, text, route)
    deliveries = list(_of_handler(event, handler))
    has_dead = any(delivery["status"] == Status.DEAD for delivery in deliveries)
    targets = [
        Target(
            delivery["delivery_id"],
            delivery["handler"],
            left_alone=delivery["status"]
            if has_dead and delivery["status"] != Status.DEAD
            else None,
        )
        for delivery in deliveries
    ]
    return sorted(targets, key=lambda target: (target.left_alone is None, target.delivery_id))


async def _find_event(desk: Desk, id: str, route: str | None) -> EventDetail:
    on = "" if route is None else f" on route {route!r}"
    try:
        found = await desk.ask(SHOW, ShowParams(id=id, **given(route=route)))
    except NotFound:
        found = []
    events = [event for event in found if event["event_id"] == id]  # not of a delivery's id
    if not events:
        raise NotFound(f"there is no event {id!r}{on}")
    if len(events) > 1:
        routes = ", ".join(sorted(event["route"] for event in events))
        raise CommandFailed(
            f"event {printable(id)} is on several routes ({routes}): say which with --route"
        )
    return events[0]


def _of_handler(event: EventDetail, handler: str | None) -> Iterator[DeliveryDetail]:
    named, deliveries = printable(event["event_id"]), event["deliveries"]
    if not deliveries:
        raise CommandFailed(
            f"event {named} has no deliveries: no handler took it. Deliver it to one with"
            " `gateway replay --handler NAME --since TIME`"
        )
    matching = [one for one in deliveries if handler is None or one["handler"] == handler]
    if not matching:
        raise CommandFailed(
            f"event {named} has no delivery of handler {handler}: it has {_names(deliveries)}"
        )
    yield from matching


def _names(deliveries: Sequence[DeliveryDetail]) -> str:
    return ", ".join(printable(delivery["handler"]) for delivery in deliveries)
