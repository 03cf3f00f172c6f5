"""The command `rejected`: list, show and release rejected requests."""

import sys
from base64 import b64decode
from collections import Counter
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from rich.padding import Padding
from rich.text import Text

from gateway.api.operation_client import OperationClient
from gateway.api.operations.rejected import (
    AT_ONCE,
    REJECTED,
    REJECTED_GROUPS,
    RELEASE,
    SHOW_REJECTED,
    RejectedGroupParams,
    RejectedParams,
    ReleaseParams,
    ShowRejectedParams,
)
from gateway.api.parameters import LONGEST_PAGE
from gateway.api.shapes import RejectedDetail, RejectedGroup, RejectedRow, ReleasedRow
from gateway.base.errors import CommandFailed
from gateway.base.units import format_count
from gateway.cli.asking import (
    AsJson,
    Limit,
    Reason,
    RouteName,
    Since,
    Url,
    ask,
    ask_pages,
    at_desk,
    given,
    limit_of,
)
from gateway.cli.output import ago, cell, console, print_json, print_rows, printable

LET_IN: Final = frozenset({"accepted", "duplicate", "ignored", "valid", "already"})
COLUMNS: Final = ["id", "at", "route", "cause", "address", "released_at", "code", "body_bytes"]
NARROW: Final = 110
"""Terminals with fewer columns have no room for the last two of them."""


class RejectedAction(StrEnum):
    """Actions on rejected requests."""

    SHOW = "show"
    RELEASE = "release"


def register(app: typer.Typer) -> None:
    app.command()(rejected)


def rejected(
    doing: Annotated[
        RejectedAction | None, typer.Argument(help="Show one, or let them in.", show_default=False)
    ] = None,
    ids: Annotated[list[int] | None, typer.Argument(help="Which: as the listing has it.")] = None,
    route: RouteName = None,
    code: Annotated[
        str | None, typer.Option("--code", help="Only with this code (BAD_SIGNATURE).")
    ] = None,
    since: Since = None,
    group: Annotated[bool, typer.Option("--group", help="Only count them, by cause.")] = False,
    body: Annotated[bool, typer.Option("--body", help="With show: print only the raw body.")] = (
        False
    ),
    everything: Annotated[
        bool, typer.Option("--all", help="With release: all that match the filters.")
    ] = False,
    to_route: Annotated[
        str | None,
        typer.Option("--to-route", help="With release: to this route, if it was sent to another."),
    ] = None,
    reason: Reason = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With release: only verify again.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: for scripts.")] = False,
    limit: Limit = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """List rejected requests with the cause of each; show one; release those that are valid now.

    Only a small part of the rejected requests is stored, without credentials. A release verifies in
    full again, with the current secrets of the routes, as of the time when the request arrived.
    Forged requests stay rejected.

    Examples: [bold]gateway rejected --since 1h[/bold], [bold]gateway rejected show 42[/bold],
    [bold]gateway rejected release --route stripe --all[/bold]
    """
    chosen = given(route=route, code=code, since=since)
    if doing is not RejectedAction.RELEASE and (everything or to_route or reason or dry_run or yes):
        raise typer.BadParameter(
            "--all, --to-route, --reason, --dry-run and --yes belong to release"
        )
    if doing is RejectedAction.RELEASE:
        options = given(ids=ids or None, to_route=to_route, reason=reason)
        _release(ReleaseParams(**chosen, **options, all=everything), dry_run, yes, as_json, url)
    elif doing is RejectedAction.SHOW:
        _show(ids or [], body, as_json, url)
    else:
        _list(chosen, group, limit, as_json, url)


def _list(
    chosen: dict[str, Any], group: bool, limit: int | None, as_json: bool, url: str | None
) -> None:
    if group or not as_json:
        most = min(limit or LONGEST_PAGE, LONGEST_PAGE)
        groups = ask(url, REJECTED_GROUPS, RejectedGroupParams(**chosen, limit=most))
        if as_json:
            print_json(groups)
            return
        _print_groups(groups)
        if group or not groups:
            return
    rows = ask_pages(url, REJECTED, RejectedParams(**chosen), limit_of(limit, as_json))
    if as_json:
        print_json(rows)
        return
    console().print()
    marked = [{**row, "cause": _cause(row)} for row in rows]
    print_rows(COLUMNS[:-2] if console().width < NARROW else COLUMNS, marked, empty="")
    console().print(
        "A part of what is refused is kept; the counts are in `gateway status`.", style="dim"
    )


def _cause(row: RejectedRow) -> str:
    copies = f", {row['copies']:,} copies" if row["copies"] > 1 else ""
    return f"{row['cause']}{copies}{', accepted' if row['shadow'] else ''}"


def _print_groups(groups: list[RejectedGroup]) -> None:
    """Print each cause in full. A table column would be too narrow for the text."""
    out = console()
    if not groups:
        out.print("No refused request was kept.")
    for one in groups:
        place = f"on {one['route']}" if one["route"] else "for a path of no route"
        senders = format_count(one["senders"], "sender")
        released = f", {one['released']:,} of them released" if one["released"] else ""
        cause = "" if one["cause"] == one["code"].lower() else f" ({one['cause']})"
        told = (
            f"{one['count']:,} {place}: {one['code']}{cause}, {senders}, last {ago(one['last_at'])}"
        )
        out.print(printable(told + released), markup=False, style="bold")
        out.print(Padding(Text(printable(one["detail"])), (0, 0, 0, 4), expand=False))


def _show(ids: list[int], body: bool, as_json: bool, url: str | None) -> None:
    if len(ids) != 1:
        raise typer.BadParameter("give the id of one refused request: gateway rejected show 42")
    with_body = body or as_json
    found = ask(url, SHOW_REJECTED, ShowRejectedParams(rejected_id=ids[0], body=with_body))
    if as_json:
        print_json(found)
    elif body:
        _print_body(found)
    else:
        _print_detail(found)


def _print_body(found: RejectedDetail) -> None:
    if found["body"] is None:
        raise CommandFailed(f"there is no body to print: {_kept(found)}")
    exact = found["body_base64"]
    raw = found["body"].encode() if exact is None else b64decode(exact)
    if sys.stdout.isatty():  # untrusted bytes could control the terminal
        lines = raw.decode("utf-8", "backslashreplace").splitlines()
        console().print("\n".join(map(printable, lines)), markup=False)
    else:
        sys.stdout.buffer.write(raw)


def _print_detail(found: RejectedDetail) -> None:
    out = console()
    out.print(f"refused request {found['id']}", style="bold")
    size = "never came" if found["body_bytes"] is None else f"{found['body_bytes']:,} bytes"
    told = {
        "at": f"{found['at']:%Y-%m-%d %H:%M:%S} UTC ({cell(found['at'])})",
        "route": found["route"] or "none has this path",
        "request": f"{found['method']} {found['path']}",
        "address": found["address"] or "-",
        "code": found["code"] + (", and accepted in development" if found["shadow"] else ""),
        "cause": found["detail"],
        "copies": f"{found['copies']:,}",
        "body": f"{size} ({_kept(found)})",
    }
    if found["released_at"] is not None:
        told["released"] = f"{cell(found['released_at'])}, as {_names(found['released_as'])}"
    for name, value in told.items():
        out.print(f"  {name:<10} {printable(value)}", markup=False)
    for name, value in (found["headers"] or {}).items():
        out.print(f"    {printable(name)}: {printable(value)}", markup=False, style="dim")


def _kept(found: RejectedDetail) -> str:
    if found["released_at"] is not None:
        return "released: it is with its event"
    if not found["body_kept"]:
        return "not kept"
    if found["key_id"] is not None:
        return f"encrypted under key {found['key_id']}: only a release reads it"
    return "print it with --body"


def _names(event_ids: list[str] | None) -> str:
    return ", ".join(event_ids or []) or "no event"


def _release(
    params: ReleaseParams, dry_run: bool, yes: bool, as_json: bool, url: str | None
) -> None:
    if (params.ids is None) == (not params.all):
        raise typer.BadParameter("give ids, or --all with or without filters")
    if params.ids is not None and (params.route or params.code or params.since):
        raise typer.BadParameter("filters belong to --all")
    if len(params.ids or ()) > AT_ONCE:
        raise typer.BadParameter(f"at most {AT_ONCE} ids at once, or --all")
    if not (dry_run or yes or sys.stdin.isatty()):
        raise typer.BadParameter(
            "there is no terminal to ask on: confirm with --yes, or only verify with --dry-run"
        )
    if not yes or dry_run:
        looked_at = _each(params.model_copy(update={"dry_run": True}), url)
        _tell(looked_at, as_json=as_json and dry_run)
        valid = sum(row["outcome"] == "valid" for row in looked_at)
        if dry_run or not valid:
            return
        if not typer.confirm(f"Let {format_count(valid, 'request')} in?"):
            raise CommandFailed("nothing was done")
    released = _each(params, url)
    _tell(released, as_json=as_json)
    if any(row["outcome"] not in LET_IN for row in released):
        raise typer.Exit(1)


def _each(params: ReleaseParams, url: str | None) -> list[ReleasedRow]:
    async def collect(desk: OperationClient) -> list[ReleasedRow]:
        rows: list[ReleasedRow] = []
        after = None
        while True:
            piece = await desk.ask(RELEASE, params.model_copy(update={"after": after}))
            rows += piece["items"]
            after = piece["next"]
            if after is None:
                return rows

    return at_desk(url, collect)


def _tell(rows: list[ReleasedRow], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    shown = [row | {"event_ids": " ".join(row["event_ids"]) or None} for row in rows]
    print_rows(
        ["id", "outcome", "route", "event_ids", "detail"],
        shown,
        empty="No refused request matches.",
    )
    counts = Counter(row["outcome"] for row in rows)
    if counts:
        told = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.most_common())
        console().print(f"{told}.", style="dim")
