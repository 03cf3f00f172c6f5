"""`replay` and `discard`: changing what stands in the ledger."""

from typing import Annotated, Any

import typer

from gateway.api.desk import Desk
from gateway.api.operation import Operation
from gateway.api.operations.events import DISCARD, REPLAY, OrderParams
from gateway.api.operations.orders import (
    BEGIN_ORDER,
    DELIVER,
    BeginParams,
    DeliverParams,
    ResumeParams,
)
from gateway.cli.asking import (
    Account,
    ErrorText,
    Handler,
    Reason,
    RouteName,
    Since,
    Type,
    Until,
    Url,
    at_desk,
    given,
)
from gateway.cli.bulk import go_on, order_all
from gateway.cli.output import console
from gateway.errors import CommandFailed, TransitionRefused

DeliveryIds = Annotated[
    list[int] | None,
    typer.Argument(min=1, max=2**63 - 1, help="Delivery ids, as `gateway dead` shows them."),
]
Dead = Annotated[bool, typer.Option("--dead", help="All dead letters that match the filters.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count what matches, by error.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask: for scripts.")]
Rate = Annotated[
    int | None,
    typer.Option("--rate", min=1, max=100_000, help="At most so many a second."),
]
Resume = Annotated[
    int | None,
    typer.Option("--resume", metavar="ORDER", min=1, max=2**63 - 1, help="Go on with this order."),
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(replay)
    app.command()(discard)


def replay(
    delivery_ids: DeliveryIds = None,
    dead: Dead = False,
    route: RouteName = None,
    type: Type = None,
    handler: Handler = None,
    error: ErrorText = None,
    since: Since = None,
    until: Until = None,
    account: Account = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    resume: Resume = None,
    reason: Reason = None,
    url: Url = None,
) -> None:
    """Run deliveries again, now, with a fresh round of attempts.

    Single ones by their ids: dead, done, discarded and waiting ones. Replaying one that is done is
    an order to do it again: its writes happen again. Or with [bold]--dead[/bold] all dead letters
    that match. Or, with [bold]--handler[/bold] and [bold]--since[/bold], events that the handler
    had no delivery of, because it came later than they did. Leaves audit rows.

    Examples: [bold]gateway replay 42 --reason "the mail server is back"[/bold],
    [bold]gateway replay --dead --route stripe --error timeout[/bold],
    [bold]gateway replay --handler handlers.billing.new_one --since 7d[/bold]
    """
    filters = given(
        route=route, type=type, handler=handler, error=error, since=since, until=until,
        account=account,
    )  # fmt: skip
    order = given(rate=rate, reason=reason)
    match _way(delivery_ids, dead, filters, resume, dry_run=dry_run, rate=rate):
        case "resume":
            go_on({"replay", "deliver"}, ResumeParams(order_id=resume or 0, **order), url)
        case "ids":
            _order_each(REPLAY, delivery_ids or [], reason, url, done="replayed")
        case "dead":
            params = BeginParams(action="replay", **filters, **order)
            order_all(BEGIN_ORDER, params, "replay", dry_run=dry_run, yes=yes, url=url)
        case _:
            _check_delivery(filters)
            delivery = DeliverParams(**filters, **order)
            order_all(DELIVER, delivery, "deliver", dry_run=dry_run, yes=yes, url=url)


def discard(
    delivery_ids: DeliveryIds = None,
    dead: Dead = False,
    route: RouteName = None,
    type: Type = None,
    handler: Handler = None,
    error: ErrorText = None,
    since: Since = None,
    until: Until = None,
    account: Account = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    resume: Resume = None,
    reason: Reason = None,
    url: Url = None,
) -> None:
    """Give deliveries up: they will not run, unless someone replays them.

    Single ones by their ids: dead and waiting ones. Or with [bold]--dead[/bold] all dead letters
    that match. Leaves audit rows.

    Examples: [bold]gateway discard 42 --reason "a test order"[/bold],
    [bold]gateway discard --dead --handler handlers.old.one --until 30d[/bold]
    """
    filters = given(
        route=route, type=type, handler=handler, error=error, since=since, until=until,
        account=account,
    )  # fmt: skip
    order = given(rate=rate, reason=reason)
    match _way(delivery_ids, dead, filters, resume, dry_run=dry_run, rate=rate):
        case "resume":
            go_on({"discard"}, ResumeParams(order_id=resume or 0, **order), url)
        case "ids":
            _order_each(DISCARD, delivery_ids or [], reason, url, done="discarded")
        case "dead":
            params = BeginParams(action="discard", **filters, **order)
            order_all(BEGIN_ORDER, params, "discard", dry_run=dry_run, yes=yes, url=url)
        case _:
            raise typer.BadParameter("give delivery ids, or --dead with filters")


def _way(
    ids: list[int] | None,
    dead: bool,
    filters: dict[str, Any],
    resume: int | None,
    *,
    dry_run: bool,
    rate: int | None,
) -> str:
    """Which of the ways to order was meant: one of them."""
    if resume is not None and (ids or dead or filters or dry_run):
        raise typer.BadParameter("--resume goes on with an order as it was given: nothing else")
    if ids and (dead or filters):
        raise typer.BadParameter("give delivery ids, or filters, and not both")
    if ids and (dry_run or rate is not None):
        raise typer.BadParameter("--dry-run and --rate are for all that match, not for single ids")
    if resume is not None:
        return "resume"
    if ids:
        return "ids"
    return "dead" if dead else "filters"


def _check_delivery(filters: dict[str, Any]) -> None:
    """Without --dead it is about events that a handler never had."""
    if not {"handler", "since"} <= filters.keys():
        raise typer.BadParameter(
            "give delivery ids, or --dead with filters for dead letters, or --handler and --since "
            "for events that this handler had no delivery of"
        )
    if "error" in filters:
        raise typer.BadParameter("--error belongs to --dead")


def _order_each(
    operation: Operation[OrderParams, Any],
    delivery_ids: list[int],
    reason: str | None,
    url: str | None,
    *,
    done: str,
) -> None:
    """A refusal of one does not keep back the others."""

    async def order(desk: Desk) -> list[str]:
        refusals = []
        for delivery_id in dict.fromkeys(delivery_ids):
            params = OrderParams(delivery_id=delivery_id, **given(reason=reason))
            try:
                await desk.ask(operation, params)
            except (CommandFailed, TransitionRefused) as refusal:
                refusals.append(str(refusal))
            else:
                console().print(f"delivery {delivery_id}: {done}")
        return refusals

    if refusals := at_desk(url, order):
        raise CommandFailed("\n".join(refusals))
