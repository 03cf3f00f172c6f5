"""Run operations for commands, on the configured ledger or a remote gateway (`--url`)."""

import asyncio
import getpass
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import typer

from gateway.api.operation import Operation, Params
from gateway.api.operation_client import OperationClient, open_desk
from gateway.api.operations.events import SHOW, ShowParams
from gateway.api.parameters import LONGEST_PAGE, Page, PageParams
from gateway.api.shapes import DeliveryDetail, EventDetail
from gateway.base.errors import CommandFailed, NotFound
from gateway.base.model import Status
from gateway.base.problems import Unexpected
from gateway.base.times import parse_moment
from gateway.cli.output import printable
from gateway.config.routes.fields import check_url
from gateway.config.settings import discover, load_settings

T = TypeVar("T")
P = TypeVar("P", bound=Params)
Q = TypeVar("Q", bound=PageParams)
R = TypeVar("R")

SHORT: Final = 20
"""Default number of rows in a table."""


def _check_url(text: str | None) -> str | None:
    if text is not None:
        try:
            check_url(text)
        except Unexpected as error:
            expected = "a URL such as https://hooks.example.com"
            raise typer.BadParameter(f"found {error.found}; expected {expected}") from None
    return text


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        callback=_check_url,
        help="Ask this gateway (https://hooks.example.com), with GATEWAY_ADMIN_TOKEN, "
        "and not the database.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: one array, all of it.")]
RouteName = Annotated[str | None, typer.Option("--route", help="Only this route.")]
Type = Annotated[str | None, typer.Option("--type", help="Only these event types (invoice.*).")]
Handler = Annotated[
    str | None, typer.Option("--handler", help="Only this handler (handlers.mail.send).")
]
ErrorText = Annotated[
    str | None, typer.Option("--error", help="Only where the error has this text (time*out).")
]
Account = Annotated[str | None, typer.Option("--account", help="Only of this account.")]
Since = Annotated[str | None, typer.Option("--since", help="Not before: 2h (ago), or a time.")]
Until = Annotated[str | None, typer.Option("--until", help="Before: 10m (ago), or a time.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why, for the audit log.")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, max=2**31 - 1, help="At most so many, newest first.")
]


def at_desk(url: str | None, work: Callable[[OperationClient], Awaitable[T]]) -> T:
    """Call `work` with a desk for the ledger, or for the gateway at the URL."""

    async def run() -> T:
        async with open_desk(discover(load_settings()), url, who()) as desk:
            return await work(desk)

    return asyncio.run(run())


def ask(url: str | None, operation: Operation[P, R], params: P) -> R:
    """Run one operation and return its result."""
    return at_desk(url, lambda desk: desk.ask(operation, params))


def ask_pages(
    url: str | None, operation: Operation[Q, Page[R]], params: Q, limit: int | None
) -> list[R]:
    """Return up to `limit` rows of a listing, or all of them."""

    async def collect(desk: OperationClient) -> list[R]:
        return [row async for row in pages(desk, operation, params, limit)]

    return at_desk(url, collect)


async def pages(
    desk: OperationClient, operation: Operation[Q, Page[R]], params: Q, limit: int | None
) -> AsyncIterator[R]:
    """Iterate over the rows of a listing, page by page."""
    left, after = limit, params.after
    while left is None or left > 0:
        size = LONGEST_PAGE if left is None else min(LONGEST_PAGE, left)
        page = await desk.ask(operation, params.model_copy(update={"after": after, "limit": size}))
        for row in page["items"]:
            yield row
        after = page["next"]
        if after is None:
            return
        left = None if left is None else left - len(page["items"])


def limit_of(limit: int | None, as_json: bool) -> int | None:
    """Return the given limit, or else the default: one page in a table, no limit in JSON."""
    return limit if limit is not None or as_json else SHORT


def given(**values: Any) -> dict[str, Any]:
    """Return the options that were given, with times parsed."""
    return dict(_read(values))


def _read(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name in ("since", "until") and value is not None:
            try:
                yield name, parse_moment(value)
            except Unexpected as error:
                raise typer.BadParameter(
                    f"found {error.found}; expected {error.expected}", param_hint=f"--{name}"
                ) from None
        elif value is not None:
            yield name, value


def who() -> str:
    """Return the user name for the audit log, or the uid: a container's user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


DELIVERY_ID: Final = re.compile(r"[0-9]+")
LARGEST_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Target:
    """A delivery selected on the command line."""

    delivery_id: int
    handler: str | None = None
    """None if it was selected by its own id."""
    left_alone: str | None = None
    """Its status, if it is skipped because another delivery of the event is dead."""

    def __str__(self) -> str:
        named = f"delivery {self.delivery_id}"
        return named if self.handler is None else f"{named} ({printable(self.handler)})"


def is_delivery_id(text: str, route: str | None) -> bool:
    """Return whether an id is a delivery id.

    With --route, all ids are event ids, because an event id may also be a number.
    """
    return route is None and DELIVERY_ID.fullmatch(text) is not None


async def collect_targets(
    desk: OperationClient, ids: Sequence[str], *, route: str | None, handler: str | None
) -> tuple[list[Target], list[str]]:
    """Return the selected deliveries, each once, and the reasons why other ids select none.

    An event id selects the dead deliveries of the event, or all of them if none is dead: a
    completed handler must not run again only because another one failed.
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


async def _find(
    desk: OperationClient, text: str, *, route: str | None, handler: str | None
) -> list[Target]:
    if is_delivery_id(text, route):
        if not 1 <= int(text) <= LARGEST_ID:
            raise NotFound(f"there is no delivery {text}")
        return [Target(int(text))]
    event = await find_event(desk, text, route)
    if handler is not None and event["deliveries"]:  # the handler may be given by a former name
        matching = await find_event(desk, text, route, handler=handler)
        if not matching["deliveries"]:
            raise CommandFailed(
                f"event {printable(text)} has no delivery of handler {handler}:"
                f" it has {_names(event['deliveries'])}"
            )
        event = matching
    deliveries = _deliveries(event)
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


async def find_event(
    desk: OperationClient, id: str, route: str | None, *, handler: str | None = None
) -> EventDetail:
    """Return the event of this id, with the deliveries of the handler or all of them.

    Raises NotFound, and CommandFailed if it is on several routes.
    """
    on = "" if route is None else f" on route {route!r}"
    try:
        found = await desk.ask(SHOW, ShowParams(id=id, **given(route=route, handler=handler)))
    except NotFound:
        found = []
    events = [event for event in found if event["event_id"] == id]  # not found by a delivery id
    if not events:
        raise NotFound(f"there is no event {id!r}{on}")
    if len(events) > 1:
        routes = ", ".join(sorted(event["route"] for event in events))
        raise CommandFailed(
            f"event {printable(id)} is on several routes ({routes}): say which with --route"
        )
    return events[0]


def _deliveries(event: EventDetail) -> list[DeliveryDetail]:
    if not event["deliveries"]:
        raise CommandFailed(
            f"event {printable(event['event_id'])} has no deliveries: no handler took it. Deliver"
            " it to one with `gateway replay --handler NAME --since TIME`"
        )
    return event["deliveries"]


def _names(deliveries: Sequence[DeliveryDetail]) -> str:
    return ", ".join(printable(delivery["handler"]) for delivery in deliveries)
