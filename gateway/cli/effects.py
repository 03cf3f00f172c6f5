"""The command `effects`: list and resolve effects of unknown outcome."""

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from gateway.api.operation_client import OperationClient
from gateway.api.operations.bulk import ResumeBulkParams
from gateway.api.operations.effects import (
    CONFIRM_EFFECTS,
    EFFECT_GROUPS,
    EFFECTS,
    RESOLVE_ALL_EFFECTS,
    RETRY_EFFECTS,
    EffectGroupParams,
    EffectsParams,
    ResolveAllParams,
    ResolveParams,
)
from gateway.api.parameters import LONGEST_PAGE
from gateway.base.errors import CommandFailed, NotFound, TransitionRefused
from gateway.cli.asking import (
    LARGEST_ID,
    Account,
    AsJson,
    ErrorText,
    Handler,
    Limit,
    Reason,
    RouteName,
    Since,
    Type,
    Until,
    Url,
    ask,
    ask_pages,
    at_desk,
    find_event,
    given,
    is_delivery_id,
    limit_of,
)
from gateway.cli.bulk import Rate, begin_all, name_in_full, print_groups, resume_all
from gateway.cli.output import console, print_json, print_rows, printable
from gateway.cli.replay import DryRun, Resume, Yes

COLUMNS: Final = ["delivery_id", "name", "unknown_at", "event_id", "handler", "error"]


class EffectAction(StrEnum):
    """Actions on effects of unknown outcome."""

    RETRY = "retry"
    CONFIRM = "confirm"


def register(app: typer.Typer) -> None:
    app.command()(effects)


def effects(
    doing: Annotated[
        EffectAction | None,
        typer.Argument(help="Make them again, or count them as done.", show_default=False),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Argument(help="Delivery ids or event ids, as the listing shows them."),
    ] = None,
    route: RouteName = None,
    type: Type = None,
    handler: Handler = None,
    effect: Annotated[
        str | None, typer.Option("--effect", help="Only effects of this name (receipt).")
    ] = None,
    error: ErrorText = None,
    since: Since = None,
    until: Until = None,
    account: Account = None,
    group: Annotated[
        bool, typer.Option("--group", help="Count them by route, handler, name and error.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="With retry and confirm: all that match the filters.")
    ] = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    resume: Resume = None,
    reason: Reason = None,
    limit: Limit = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """List effects of unknown outcome; retry or confirm them.

    A call of [bold]ctx.once[/bold] ended in a timeout, in a 500 or with its worker, and its
    delivery completed without it, or was discarded. The call may have been done or not.
    [bold]retry[/bold] runs the delivery again and makes the call again; effects that were done
    stay done. [bold]confirm[/bold] counts the call as done, because it was or is not wanted. Both
    are recorded in the audit log.

    Examples: [bold]gateway effects --since 1d[/bold],
    [bold]gateway effects retry 42 --reason "the provider's log has no such mail"[/bold],
    [bold]gateway effects confirm evt_1Pabc[/bold],
    [bold]gateway effects retry --all --handler handlers.shop.fulfil_order[/bold]
    """
    filters = given(
        route=route, type=type, handler=handler, effect=effect, error=error, since=since,
        until=until, account=account,
    )  # fmt: skip
    if doing is None:
        if everything or yes or dry_run or reason or rate or resume:
            raise typer.BadParameter(
                "--all, --yes, --dry-run, --rate, --resume and --reason belong to retry and confirm"
            )
        _list(filters, group, limit, as_json, url)
        return
    if group or limit or as_json:
        raise typer.BadParameter("--group, --limit and --json belong to the listing")
    options = given(rate=rate, reason=reason)
    match _way(ids, everything, filters, resume):
        case "resume":
            resume_all(ResumeBulkParams(bulk_id=resume or 0, **options), url, f"{doing}_effects")
        case "ids":
            if dry_run or rate is not None:
                raise typer.BadParameter("--dry-run and --rate belong to --all")
            _resolve_each(doing, ids or [], filters, reason, url)
        case _:
            params = ResolveAllParams(action=doing.value, **filters, **options)
            begin_all(
                RESOLVE_ALL_EFFECTS,
                params,
                f"{doing}_effects",
                dry_run=dry_run,
                yes=yes,
                url=url,
            )


def _way(
    ids: list[str] | None, everything: bool, filters: dict[str, Any], resume: int | None
) -> str:
    """Return which kind of selection the options make."""
    if resume is not None and (ids or everything or filters):
        raise typer.BadParameter(
            "--resume takes a bulk operation as it was begun: give nothing else"
        )
    if resume is not None:
        return "resume"
    narrowed = filters.keys() & {"route", "handler"}
    if ids and (everything or filters.keys() - {"effect", *narrowed}):
        raise typer.BadParameter("give ids (and --effect), or --all with filters")
    if ids and narrowed and any(is_delivery_id(id, filters.get("route")) for id in ids):
        raise typer.BadParameter("--route and --handler are for event ids, not for delivery ids")
    if ids:
        return "ids"
    if not everything:
        raise typer.BadParameter("give ids, or --all with or without filters")
    return "all"


def _list(
    filters: dict[str, Any], group: bool, limit: int | None, as_json: bool, url: str | None
) -> None:
    empty = f"No effect of unknown outcome.{name_in_full(filters.get('handler'))}"
    if group:
        most = min(limit or LONGEST_PAGE, LONGEST_PAGE)
        found = ask(url, EFFECT_GROUPS, EffectGroupParams(**filters, limit=most))
        if as_json:
            print_json(found["groups"])
        else:
            print_groups(found["groups"], by="error", empty=empty)
        return
    rows = ask_pages(url, EFFECTS, EffectsParams(**filters), limit_of(limit, as_json))
    if as_json:
        print_json(rows)
        return
    if print_rows(COLUMNS, rows, empty=empty) == limit_of(limit, as_json):
        console().print(f"The newest {len(rows)}; more with --limit or --json.", style="dim")
    if rows:
        console().print(
            "Make them again: `gateway effects retry`; count them as done:"
            " `gateway effects confirm` (delivery ids, event ids, or --all).",
            style="dim",
        )


def _resolve_each(
    doing: EffectAction,
    ids: list[str],
    filters: dict[str, Any],
    reason: str | None,
    url: str | None,
) -> None:
    """Resolve the effects of each delivery or event. If one is refused, the others continue."""
    operation = RETRY_EFFECTS if doing is EffectAction.RETRY else CONFIRM_EFFECTS
    done = "to be made again" if doing is EffectAction.RETRY else "confirmed as done"

    async def resolve(desk: OperationClient) -> list[str]:
        refusals = []
        targets = dict[tuple[int, str | None], None]()
        for id in ids:
            try:
                targets.update(dict.fromkeys(await _find(desk, id, **filters)))
            except CommandFailed as refusal:
                refusals.append(str(refusal))
        for delivery_id, effect in targets:
            chosen = given(effect=effect, reason=reason)
            try:
                resolved = await desk.ask(
                    operation, ResolveParams(delivery_id=delivery_id, **chosen)
                )
            except (CommandFailed, TransitionRefused) as refusal:
                refusals.append(str(refusal))
            else:
                names = ", ".join(resolved["effects"])
                console().print(f"delivery {delivery_id}: {names}: {done}", markup=False)
        return refusals

    if refusals := at_desk(url, resolve):
        raise CommandFailed("\n".join(refusals))


async def _find(
    desk: OperationClient,
    id: str,
    *,
    route: str | None = None,
    handler: str | None = None,
    effect: str | None = None,
) -> list[tuple[int, str | None]]:
    """Return the delivery, or those that have the effects of the event, with the effect's name.

    Without a name, all effects of unknown outcome of the delivery are meant. An effect that the
    delivery of another event has, under the same key, is resolved there.
    """
    if is_delivery_id(id, route):
        if not 1 <= int(id) <= LARGEST_ID:
            raise NotFound(f"there is no delivery {id}")
        return [(int(id), effect)]
    event = await find_event(desk, id, route, handler=handler)
    found = dict[tuple[int, str | None], None]()
    dead = {item["delivery_id"] for item in event["deliveries"] if item["status"] == "dead"}
    for row in (row for delivery in event["deliveries"] for row in delivery["effects"]):
        is_of_dead = row["delivery_id"] in dead  # to be confirmed: a retry is refused with advice
        if row["status"] == "done" or not (row["made_by"] or row["unknown_at"] or is_of_dead):
            continue
        if row["made_by"] is None:
            found[row["delivery_id"], effect] = None
        elif effect in (None, row["name"]):
            found[row["made_by"], row["name"]] = None
    if not found:
        raise CommandFailed(f"event {printable(id)} has no effect of unknown outcome")
    return list(found)
