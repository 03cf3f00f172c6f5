"""`status`, `events`, `show` and `dead`: reading the ledger."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, TypeVar

import orjson
import typer

from gateway.cli.output import (
    cell,
    console,
    parse_moment,
    print_json,
    print_rows,
    printable,
)
from gateway.errors import CommandFailed
from gateway.ledger.connection import Connection, connect
from gateway.ledger.migrate import check_version
from gateway.model import payload_bytes
from gateway.operate.inspect import Filter, find, list_dead, list_events
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
    app.command()(show)
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
        ["route", "handler", "pending", "oldest_due_at", "running", "dead", "note"],
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


def show(
    id: Annotated[str, typer.Argument(help="An event id (evt_...) or a delivery id (a number).")],
    route: RouteName = None,
    body: Annotated[bool, typer.Option("--body", help="Print only the raw body.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one event: what came, its deliveries and every attempt.

    Examples: [bold]gateway show evt_1Pabc[/bold], [bold]gateway show 42[/bold],
    [bold]gateway show evt_1Pabc --body > event.json[/bold]
    """
    found = _read(lambda connection: find(connection, id, route))
    if not found:
        raise CommandFailed(f"there is no event or delivery {id!r}" + _on(route))
    if body:
        _print_body(found)
    elif as_json:
        print_json([_jsonable(event) for event in found])
    else:
        for event in found:
            _print_event(event)


def _on(route: str | None) -> str:
    return "" if route is None else f" on route {route!r}"


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
    rows = _read(lambda connection: query(connection, filter))
    if as_json:
        print_json(rows)
        return
    shown = print_rows(columns, rows, empty=empty)
    if filter.limit == shown:
        console().print(f"The newest {shown}; more with --limit or --json.", style="dim")


def _read(query: Callable[[Connection], Awaitable[T]]) -> T:
    return asyncio.run(_with_ledger(discover(load_settings()), query))


async def _with_ledger(settings: Settings, query: Callable[[Connection], Awaitable[T]]) -> T:
    connection = await connect(database_url(settings), name="gateway command")
    try:
        await check_version(connection)
        return await query(connection)
    finally:
        await connection.close()


def _print_body(found: list[dict[str, Any]]) -> None:
    if len(found) > 1:
        routes = ", ".join(event["route"] for event in found)
        raise CommandFailed(f"this id is on several routes ({routes}): say which with --route")
    if found[0]["body"] is None:
        raise CommandFailed("the payload was pruned by retention")
    sys.stdout.buffer.write(found[0]["body"])


def _jsonable(event: dict[str, Any]) -> dict[str, Any]:
    body = event["body"]
    return event | {"body": None if body is None else body.decode("utf-8", "backslashreplace")}


def _print_event(event: dict[str, Any]) -> None:
    out = console()
    out.print(f"[bold]{printable(event['event_id'])}[/bold]", markup=True)
    for name in ("route", "provider", "type", "account", "livemode", "occurred_at", "received_at"):
        if event[name] is not None:
            out.print(f"  {name.replace('_', ' '):<12} {_plain(event[name])}", markup=False)
    if event["spooled"]:
        out.print("  spooled      acknowledged while Postgres was away, claimed later")
    if event["replay_of"]:
        out.print(f"  flagged      same bytes as {printable(event['replay_of'])}", markup=False)
    out.print(f"  {'payload':<12} {_payload_line(event)}", markup=False)
    if not event["deliveries"]:
        out.print("  no handler took it")
    for delivery in event["deliveries"]:
        _print_delivery(delivery)


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC ({cell(value)})"
    return printable(str(value))


def _payload_line(event: dict[str, Any]) -> str:
    if event["body"] is None:
        return "pruned by retention"
    size = len(event["body"])
    try:
        document = orjson.loads(payload_bytes(event["headers"] or {}, event["body"]))
    except ValueError:
        return f"{size} bytes"
    keys = ", ".join(map(str, document)) if isinstance(document, dict) else ""
    return f"{size} bytes of JSON: {printable(keys)[:160]} (print it with --body)"


def _print_delivery(delivery: dict[str, Any]) -> None:
    out = console()
    out.print()
    line = cell(delivery["status"])
    out.print(f"  delivery {delivery['delivery_id']}", delivery["handler"], line, markup=False)
    for attempt in delivery["attempt_log"]:
        ms = (attempt["finished_at"] - attempt["started_at"]).total_seconds() * 1000
        out.print(
            f"    run {attempt['number']}: {attempt['outcome']} after {ms:.0f} ms, "
            f"{cell(attempt['finished_at'])}",
            markup=False,
        )
        for text in (attempt["error"] or "").splitlines():
            out.print(f"      {printable(text)}", markup=False, style="dim")
    for entry in delivery["audit"]:
        why = f": {printable(entry['reason'])}" if entry["reason"] else ""
        who = printable(entry["actor"])
        out.print(f"    {entry['action']} by {who}, {cell(entry['at'])}{why}", markup=False)
    if delivery["status"] == "pending":
        out.print(f"    due {cell(delivery['due_at'])}", markup=False)
