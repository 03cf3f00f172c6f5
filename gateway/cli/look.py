"""`status`, `events` and `dead`: reading the ledger."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from gateway.cli.output import (
    cell,
    console,
    parse_moment,
    print_json,
    print_rows,
    printable,
)
from gateway.ledger.connection import Connection, connect
from gateway.ledger.migrate import check_version
from gateway.operate.inspect import Filter, list_dead, list_events
from gateway.operate.status import Report, read_status
from gateway.project import database_url
from gateway.settings import Settings, discover, load_settings
from gateway.spool.look import Stock

T = TypeVar("T")

PAGE = 20
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: one array, all of it.")]
RouteName = Annotated[str | None, typer.Option("--route", help="Only this route.")]
Type = Annotated[str | None, typer.Option("--type", help="Only these event types (invoice.*).")]
Handler = Annotated[str | None, typer.Option("--handler", help="Only this handler.")]
Since = Annotated[str | None, typer.Option("--since", help="Not before: 2h (ago), or a time.")]
Until = Annotated[str | None, typer.Option("--until", help="Before: 10m (ago), or a time.")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, max=2**31 - 1, help="At most so many, newest first.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(status)
    app.command()(events)
    app.command()(dead)


def status(as_json: AsJson = False) -> None:
    """One screen: what waits, what runs, what is dead, what is spooled, which workers live.

    Exit 1 where the database cannot be reached.
    """
    settings = discover(load_settings())
    report = asyncio.run(read_status(settings))
    if as_json:
        print_json([report.as_json()])
    else:
        _print_status(report)
    if report.postgres is not None:
        raise typer.Exit(1)


def _print_status(report: Report) -> None:
    out = console()
    redis = "reachable" if report.redis is None else f"away: {printable(report.redis)}"
    if report.postgres is None:
        out.print(f"Postgres reachable, schema {report.schema_version} · Redis {redis}")
        out.print(f"Workers  {len(report.workers)} alive")
    else:
        out.print(f"{printable(report.postgres)} · Redis {redis}", style="red", markup=False)
    out.print(f"Spool    {_spool_line(report.spool)}", markup=False)
    for piece in report.spool.unreadable:
        out.print(f"         could not be read: {printable(piece)}", markup=False)
    if report.postgres is not None:
        return
    out.print()
    print_rows(
        ["route", "last_hour", "last_event_at"], report.routes, empty="No events in the last hour."
    )
    print_rows(
        ["route", "handler", "pending", "oldest_due_at", "waiting_turn", "running", "dead", "note"],
        report.handlers,
        empty="No delivery is waiting, running or dead.",
    )
    if any(row["dead"] for row in report.handlers):
        out.print("See what failed with `gateway dead`, run it again with `gateway replay ID`.")


def _spool_line(spool: Stock) -> str:
    if not spool.events:
        return "empty"
    size = f"{spool.bytes / 1024:,.0f} KiB"
    return f"{spool.events:,} events, {size}, the oldest {cell(spool.oldest_at)}"


def events(
    route: RouteName = None,
    type: Type = None,
    handler: Handler = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """List events, newest first, with how their deliveries stand.

    Examples: [bold]gateway events --since 1h[/bold],
    [bold]gateway events --type 'invoice.*' --json[/bold]
    """
    _list(
        list_events,
        _filter(route, type, handler, since, until, _limit(limit, as_json)),
        ["received_at", "route", "event_id", "type", "deliveries", "note"],
        as_json,
        empty="No event matches.",
    )


def dead(
    route: RouteName = None,
    type: Type = None,
    handler: Handler = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, newest first: deliveries that are out of attempts or were rejected.

    Run one again with [bold]gateway replay DELIVERY_ID[/bold].
    """
    _list(
        list_dead,
        _filter(route, type, handler, since, until, _limit(limit, as_json)),
        ["delivery_id", "finished_at", "route", "type", "handler", "attempts", "error"],
        as_json,
        empty="No dead letters.",
    )


def _filter(
    route: str | None,
    type: str | None,
    handler: str | None,
    since: str | None,
    until: str | None,
    limit: int | None,
) -> Filter:
    return Filter(
        route=route,
        type=type,
        handler=handler,
        since=parse_moment(since),
        until=parse_moment(until),
        limit=limit,
    )


def _limit(limit: int | None, as_json: bool) -> int | None:
    """On a terminal a page, in JSON everything, unless it was said."""
    return limit if limit is not None or as_json else PAGE


def _list(
    query: Callable[[Connection, Filter], Awaitable[list[dict[str, Any]]]],
    filter: Filter,
    columns: list[str],
    as_json: bool,
    *,
    empty: str,
) -> None:
    rows = read_ledger(lambda connection: query(connection, filter))
    if as_json:
        print_json(rows)
        return
    shown = print_rows(columns, rows, empty=empty)
    if filter.limit == shown:
        console().print(f"The newest {shown}; more with --limit or --json.", style="dim")


def read_ledger(query: Callable[[Connection], Awaitable[T]]) -> T:
    """What a query finds in the ledger that the settings name."""
    return asyncio.run(_with_ledger(discover(load_settings()), query))


async def _with_ledger(settings: Settings, query: Callable[[Connection], Awaitable[T]]) -> T:
    connection = await connect(database_url(settings), name="gateway command")
    try:
        await check_version(connection)
        return await query(connection)
    finally:
        await connection.close()
