"""`replay` and `discard`: changing what stands in the ledger."""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from gateway.api.desk import Desk
from gateway.api.operations.events import DISCARD, REPLAY, OrderParams, ReplayParams
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
from gateway.cli.targets import Target, collect_targets, is_delivery_id
from gateway.errors import CommandFailed, TransitionRefused
from gateway.operate.bulk import effects_ahead, effects_report


class EffectsChoice(StrEnum):
    """What a replay does about effects of unknown outcome."""

    KEEP = "keep"
    RETRY = "retry"


Ids = Annotated[
    list[str] | None,
    typer.Argument(help="Delivery ids, as `gateway dead` shows them, or event ids (evt_...)."),
]
Dead = Annotated[bool, typer.Option("--dead", help="All dead letters that match the filters.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count what matches, by error.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask: for scripts.")]
Rate = Annotated[
    int | None,
    typer.Option("--rate", min=1, max=100_000, help="At most so many a second."),
]
Effects = Annotated[
    EffectsChoice,
    typer.Option(
        "--effects",
        help="Effects of unknown outcome: keep (leave them as they are) or retry (make them again)."
        " Those that were done are never made again.",
    ),
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
    ids: Ids = None,
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
    effects: Effects = EffectsChoice.KEEP,
    reason: Reason = None,
    url: Url = None,
) -> None:
    """Run deliveries again, now, with a fresh round of attempts.

    Single ones by their ids: dead, done, discarded and waiting ones. Replaying one that is done is
    an order to do it again: its writes happen again. The id of an event stands for its dead
    deliveries, or for all of them if none is dead; [bold]--handler[/bold] and
    [bold]--route[/bold] narrow it down. Or with [bold]--dead[/bold] all dead letters
    that match. Or, with [bold]--handler[/bold] and [bold]--since[/bold], events that the handler
    had no delivery of, because it came later than they did. Leaves audit rows.

    Outside effects that were done are not made again. The command says what becomes of those of
    unknown outcome before anything runs; [bold]--effects retry[/bold] makes them again.

    Examples: [bold]gateway replay 42 --reason "the mail server is back"[/bold],
    [bold]gateway replay evt_1Pabc[/bold],
    [bold]gateway replay --dead --route stripe --error timeout[/bold],
    [bold]gateway replay --handler handlers.billing.new_one --since 7d[/bold]
    """
    filters = given(
        route=route, type=type, handler=handler, error=error, since=since, until=until,
        account=account,
    )  # fmt: skip
    order = given(rate=rate, reason=reason)
    way = _way(ids, dead, filters, resume, dry_run=dry_run, rate=rate)
    if effects is EffectsChoice.RETRY and way not in ("ids", "dead"):
        raise typer.BadParameter("--effects retry belongs to ids or --dead")
    match way:
        case "resume":
            go_on({"replay", "deliver"}, ResumeParams(order_id=resume or 0, **order), url)
        case "ids":
            _replay_each(ids or [], route, handler, effects, reason, url)
        case "dead":
            params = BeginParams(action="replay", effects=effects.value, **filters, **order)
            order_all(BEGIN_ORDER, params, "replay", dry_run=dry_run, yes=yes, url=url)
        case _:
            _check_delivery(filters)
            delivery = DeliverParams(**filters, **order)
            order_all(DELIVER, delivery, "deliver", dry_run=dry_run, yes=yes, url=url)


def discard(
    ids: Ids = None,
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

    Single ones by their ids: dead and waiting ones; the id of an event stands for its dead
    deliveries, or for all of them if none is dead. Or with [bold]--dead[/bold] all dead letters
    that match. Leaves audit rows.

    Examples: [bold]gateway discard 42 --reason "a test order"[/bold],
    [bold]gateway discard --dead --handler handlers.old.one --until 30d[/bold]
    """
    filters = given(
        route=route, type=type, handler=handler, error=error, since=since, until=until,
        account=account,
    )  # fmt: skip
    order = given(rate=rate, reason=reason)
    match _way(ids, dead, filters, resume, dry_run=dry_run, rate=rate):
        case "resume":
            go_on({"discard"}, ResumeParams(order_id=resume or 0, **order), url)
        case "ids":
            _discard_each(ids or [], route, handler, reason, url)
        case "dead":
            params = BeginParams(action="discard", **filters, **order)
            order_all(BEGIN_ORDER, params, "discard", dry_run=dry_run, yes=yes, url=url)
        case _:
            raise typer.BadParameter("give ids, or --dead with filters")


def _way(
    ids: list[str] | None,
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
    if ids and (dead or filters.keys() - {"route", "handler"}):
        raise typer.BadParameter("give ids, or filters, and not both")
    if ids and filters and any(is_delivery_id(id, filters.get("route")) for id in ids):
        raise typer.BadParameter("--route and --handler are for event ids, not for delivery ids")
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
            "give ids, or --dead with filters for dead letters, or --handler and --since "
            "for events that this handler had no delivery of"
        )
    if "error" in filters:
        raise typer.BadParameter("--error belongs to --dead")


def _replay_each(
    ids: list[str],
    route: str | None,
    handler: str | None,
    effects: EffectsChoice,
    reason: str | None,
    url: str | None,
) -> None:
    async def order(desk: Desk, target: Target) -> str:
        params = ReplayParams(
            delivery_id=target.delivery_id, effects=effects.value, **given(reason=reason)
        )
        known = await desk.ask(REPLAY, params.model_copy(update={"dry_run": True}))
        ahead = effects_ahead(effects, known["effects_kept"], known["effects_unknown"])
        if ahead is not None:
            console().print(f"{target}: {ahead}", markup=False)
        done = await desk.ask(REPLAY, params)
        return "replayed" + effects_report(effects, done["effects_kept"], done["effects_unknown"])

    _order_each(ids, route, handler, url, order, left_alone="`gateway replay {id}` runs it again")


def _discard_each(
    ids: list[str], route: str | None, handler: str | None, reason: str | None, url: str | None
) -> None:
    async def order(desk: Desk, target: Target) -> str:
        await desk.ask(DISCARD, OrderParams(delivery_id=target.delivery_id, **given(reason=reason)))
        return "discarded"

    _order_each(ids, route, handler, url, order)


def _order_each(
    ids: list[str],
    route: str | None,
    handler: str | None,
    url: str | None,
    order: Callable[[Desk, Target], Awaitable[str]],
    *,
    left_alone: str = "",
) -> None:
    """A refusal of one does not keep back the others."""

    async def order_all(desk: Desk) -> list[str]:
        targets, refusals = await collect_targets(desk, ids, route=route, handler=handler)
        for target in targets:
            if target.left_alone is not None:
                hint = f": {left_alone.format(id=target.delivery_id)}" if left_alone else ""
                text = f"{target} is {target.left_alone}, and left alone{hint}"
                console().print(text, markup=False)
                continue
            try:
                done = await order(desk, target)
            except (CommandFailed, TransitionRefused) as refusal:
                refusals.append(str(refusal))
            else:
                console().print(f"{target}: {done}", markup=False)
        return refusals

    if refusals := at_desk(url, order_all):
        raise CommandFailed("\n".join(refusals))
