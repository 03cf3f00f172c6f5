"""The commands `replay` and `discard`."""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from gateway.api.operation_client import OperationClient
from gateway.api.operations.bulk import (
    BEGIN_BULK,
    DELIVER,
    BeginBulkParams,
    DeliverParams,
    ResumeBulkParams,
)
from gateway.api.operations.events import DISCARD, REPLAY, DeliveryParams, ReplayParams
from gateway.base.errors import CommandFailed, TransitionRefused
from gateway.cli.asking import (
    Account,
    ErrorText,
    Handler,
    Reason,
    RouteName,
    Since,
    Target,
    Type,
    Until,
    Url,
    at_desk,
    collect_targets,
    given,
    is_delivery_id,
)
from gateway.cli.bulk import Rate, begin_all, resume_all
from gateway.cli.output import console
from gateway.operations.bulk import effects_ahead, effects_report


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
Effects = Annotated[
    EffectsChoice,
    typer.Option(
        "--effects",
        help="Effects of unknown outcome: keep (leave them as they are) or retry (make them again)."
        " Those that were done are never made again.",
    ),
]
AsNew = Annotated[
    bool,
    typer.Option(
        "--as-new",
        help="With --handler and --since: also events that a handler has done which no worker has"
        " any more. Without it they are refused: it may be the same handler, renamed.",
    ),
]
Resume = Annotated[
    int | None,
    typer.Option(
        "--resume", metavar="ID", min=1, max=2**63 - 1, help="Resume this bulk operation."
    ),
]


def register(app: typer.Typer) -> None:
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
    as_new: AsNew = False,
    reason: Reason = None,
    url: Url = None,
) -> None:
    """Run deliveries again, now, with a fresh round of attempts.

    Name single deliveries by their ids: dead, done, discarded and waiting ones. Replaying one that
    is done makes its writes again. The id of an event selects its dead deliveries, or all of them
    if none is dead; [bold]--handler[/bold] and [bold]--route[/bold] narrow them down. With
    [bold]--dead[/bold], all dead letters that match are replayed. With [bold]--handler[/bold] and
    [bold]--since[/bold], the handler gets the events that it had no delivery of, because it was
    added after them. This is refused if they were done by a handler that no worker has any more,
    unless [bold]--as-new[/bold] is given. Every replay is recorded in the audit log.

    Effects that were done are not made again. Before anything runs, the command reports what
    happens to effects of unknown outcome; [bold]--effects retry[/bold] makes them again.

    Examples: [bold]gateway replay 42 --reason "the mail server is back"[/bold],
    [bold]gateway replay evt_1Pabc[/bold],
    [bold]gateway replay --dead --route stripe --error timeout[/bold],
    [bold]gateway replay --handler handlers.billing.new_one --since 7d[/bold]
    """
    filters = given(
        route=route, type=type, handler=handler, error=error, since=since, until=until,
        account=account,
    )  # fmt: skip
    options = given(rate=rate, reason=reason)
    way = _way(ids, dead, filters, resume, dry_run=dry_run, rate=rate)
    if effects is EffectsChoice.RETRY and way not in ("ids", "dead"):
        raise typer.BadParameter("--effects retry belongs to ids or --dead")
    if as_new and way != "filters":
        raise typer.BadParameter("--as-new belongs to --handler and --since, without --dead")
    match way:
        case "resume":
            resume_all(ResumeBulkParams(bulk_id=resume or 0, **options), url, "replay", "deliver")
        case "ids":
            _replay_each(ids or [], route, handler, effects, reason, url)
        case "dead":
            params = BeginBulkParams(action="replay", effects=effects.value, **filters, **options)
            begin_all(BEGIN_BULK, params, "replay", dry_run=dry_run, yes=yes, url=url)
        case _:
            _check_delivery(filters)
            delivery = DeliverParams(**filters, **options, as_new=as_new)
            begin_all(DELIVER, delivery, "deliver", dry_run=dry_run, yes=yes, url=url)


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

    Name single deliveries by their ids: dead and waiting ones. The id of an event selects its dead
    deliveries, or all of them if none is dead. With [bold]--dead[/bold], all dead letters that
    match are discarded. Every discard is recorded in the audit log.

    Examples: [bold]gateway discard 42 --reason "a test order"[/bold],
    [bold]gateway discard --dead --handler handlers.old.one --until 30d[/bold]
    """
    filters = given(
        route=route, type=type, handler=handler, error=error, since=since, until=until,
        account=account,
    )  # fmt: skip
    options = given(rate=rate, reason=reason)
    match _way(ids, dead, filters, resume, dry_run=dry_run, rate=rate):
        case "resume":
            resume_all(ResumeBulkParams(bulk_id=resume or 0, **options), url, "discard")
        case "ids":
            _discard_each(ids or [], route, handler, reason, url)
        case "dead":
            params = BeginBulkParams(action="discard", **filters, **options)
            begin_all(BEGIN_BULK, params, "discard", dry_run=dry_run, yes=yes, url=url)
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
    """Return which kind of selection the options make, and check that it is only one."""
    if resume is not None and (ids or dead or filters or dry_run):
        raise typer.BadParameter(
            "--resume takes a bulk operation as it was begun: give nothing else"
        )
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
    """Check the options for events that a handler had no delivery of, which is the case without
    --dead.
    """
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
    async def act(desk: OperationClient, target: Target) -> str:
        params = ReplayParams(
            delivery_id=target.delivery_id, effects=effects.value, **given(reason=reason)
        )
        known = await desk.ask(REPLAY, params.model_copy(update={"dry_run": True}))
        ahead = effects_ahead(effects, known["effects_kept"], known["effects_unknown"])
        if ahead is not None:
            console().print(f"{target}: {ahead}", markup=False)
        done = await desk.ask(REPLAY, params)
        return "replayed" + effects_report(effects, done["effects_kept"], done["effects_unknown"])

    _act_on_each(ids, route, handler, url, act, left_alone="`gateway replay {id}` runs it again")


def _discard_each(
    ids: list[str], route: str | None, handler: str | None, reason: str | None, url: str | None
) -> None:
    async def act(desk: OperationClient, target: Target) -> str:
        await desk.ask(
            DISCARD, DeliveryParams(delivery_id=target.delivery_id, **given(reason=reason))
        )
        return "discarded"

    _act_on_each(ids, route, handler, url, act)


def _act_on_each(
    ids: list[str],
    route: str | None,
    handler: str | None,
    url: str | None,
    act: Callable[[OperationClient, Target], Awaitable[str]],
    *,
    left_alone: str = "",
) -> None:
    """Apply the action to each delivery. If one is refused, the others continue."""

    async def act_on_all(desk: OperationClient) -> list[str]:
        targets, refusals = await collect_targets(desk, ids, route=route, handler=handler)
        for target in targets:
            if target.left_alone is not None:
                hint = f": {left_alone.format(id=target.delivery_id)}" if left_alone else ""
                text = f"{target} is {target.left_alone}, and left alone{hint}"
                console().print(text, markup=False)
                continue
            try:
                done = await act(desk, target)
            except (CommandFailed, TransitionRefused) as refusal:
                refusals.append(str(refusal))
            else:
                console().print(f"{target}: {done}", markup=False)
        return refusals

    if refusals := at_desk(url, act_on_all):
        raise CommandFailed("\n".join(refusals))
