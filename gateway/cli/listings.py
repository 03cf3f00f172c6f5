"""The commands `events`, `dead` and `audit`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from gateway.api.operations.dead import DEAD, GROUPS, DeadParams, GroupParams
from gateway.api.operations.events import AUDIT, EVENTS, EventsParams
from gateway.api.parameters import LONGEST_PAGE, PageParams
from gateway.base.model import Status
from gateway.cli.asking import (
    Account,
    AsJson,
    ErrorText,
    Handler,
    Limit,
    RouteName,
    Since,
    Type,
    Until,
    Url,
    ask,
    ask_pages,
    given,
    limit_of,
)
from gateway.cli.bulk import name_in_full, print_groups
from gateway.cli.output import console, print_json, print_rows


def register(app: typer.Typer) -> None:
    app.command()(events)
    app.command()(dead)
    app.command()(audit)


def events(
    route: RouteName = None,
    type: Type = None,
    handler: Handler = None,
    since: Since = None,
    until: Until = None,
    account: Account = None,
    status: Annotated[
        Status | None, typer.Option("--status", help="Only where a delivery is so.")
    ] = None,
    object: Annotated[
        str | None,
        typer.Option("--object", help="Only about this: in_1Nx... of Stripe, acme/shop#42."),
    ] = None,
    limit: Limit = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """List events, newest first, with the states of their deliveries.

    Examples: [bold]gateway events --since 1h[/bold],
    [bold]gateway events --type 'invoice.*' --json[/bold]
    """
    params = EventsParams(
        **given(
            route=route,
            type=type,
            handler=handler,
            since=since,
            until=until,
            account=account,
            status=status,
            object=object,
        )
    )
    rows = ask_pages(url, EVENTS, params, limit_of(limit, as_json))
    columns = ["received_at", "route", "event_id", "type", "deliveries", "note"]
    empty = f"No event matches.{name_in_full(handler)}"
    _print(rows, columns, as_json, limit, empty=empty)


def dead(
    route: RouteName = None,
    type: Type = None,
    handler: Handler = None,
    error: ErrorText = None,
    since: Since = None,
    until: Until = None,
    account: Account = None,
    group: Annotated[
        bool, typer.Option("--group", help="Count them by route, handler and error.")
    ] = False,
    limit: Limit = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """List dead letters, newest first: deliveries that are out of attempts or were rejected.

    Run one again with [bold]gateway replay DELIVERY_ID[/bold], or all that match with [bold]gateway
    replay --dead[/bold] and the same filters.

    Examples: [bold]gateway dead --since 1d[/bold], [bold]gateway dead --group[/bold]
    """
    filters = given(
        route=route, type=type, handler=handler, error=error, since=since, until=until,
        account=account,
    )  # fmt: skip
    if group:
        _print_groups(filters, limit, as_json, url)
        return
    params = DeadParams(**filters)
    rows = ask_pages(url, DEAD, params, limit_of(limit, as_json))
    columns = ["delivery_id", "finished_at", "route", "type", "handler", "attempts", "error"]
    empty = f"No dead letters.{name_in_full(handler)}"
    _print(rows, columns, as_json, limit, empty=empty)


def _print_groups(
    filters: dict[str, Any], limit: int | None, as_json: bool, url: str | None
) -> None:
    """Print dead letters by group.

    `…` marks the differing part of an error, and works in `--error`.
    """
    most = min(limit or LONGEST_PAGE, LONGEST_PAGE)
    found = ask(url, GROUPS, GroupParams(**filters, limit=most))
    if as_json:
        print_json(found["groups"])
        return
    empty = f"No dead letters.{name_in_full(filters.get('handler'))}"
    print_groups(found["groups"], by="error", empty=empty)
    if found["groups"]:
        console().print(f"{found['total']:,} dead letters in all.", style="dim")


def audit(limit: Limit = None, as_json: AsJson = False, url: Url = None) -> None:
    """List actions of people and of retention, newest first: who, when and why.

    Example: [bold]gateway audit --limit 50[/bold]
    """
    rows = ask_pages(url, AUDIT, PageParams(), limit_of(limit, as_json))
    columns = [
        "at", "actor", "action", "route", "handler", "event_id", "delivery_id", "effect",
        "bulk_id", "reason",
    ]  # fmt: skip
    _print(rows, columns, as_json, limit, empty="The audit log is empty.")


def _print(
    rows: Sequence[Mapping[str, Any]],
    columns: list[str],
    as_json: bool,
    limit: int | None,
    *,
    empty: str,
) -> None:
    if as_json:
        print_json(rows)
    elif print_rows(columns, rows, empty=empty) == limit_of(limit, as_json):
        console().print(f"The newest {len(rows)}; more with --limit or --json.", style="dim")
