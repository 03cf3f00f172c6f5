"""`status`: one look at the whole."""

import asyncio
from typing import Annotated

import typer

from gateway.cli.output import cell, console, print_json, print_rows, printable
from gateway.ledger.pauses import Pause
from gateway.operate.status import Report, read_status
from gateway.settings import discover, load_settings
from gateway.spool.look import Stock

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: one array, all of it.")]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(status)


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
    for pause in report.pauses:
        out.print(f"Paused   {_pause_line(pause)}", markup=False)
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


def _pause_line(pause: Pause) -> str:
    what = pause.route if pause.handler is None else f"{pause.route} {pause.handler}"
    why = f": {pause.reason}" if pause.reason else ""
    return printable(f"{what}, by {pause.actor}, {cell(pause.since)}{why}")


def _spool_line(spool: Stock) -> str:
    if not spool.events:
        return "empty"
    size = f"{spool.bytes / 1024:,.0f} KiB"
    return f"{spool.events:,} events, {size}, the oldest {cell(spool.oldest_at)}"
