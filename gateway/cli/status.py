"""`status`: one look at the whole, once or again and again."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from gateway.api.desk import open_desk
from gateway.api.operations.status import STATUS, StatusParams
from gateway.cli.asking import Url, who
from gateway.cli.output import console, print_json, printable
from gateway.cli.status_screen import draw, draw_to_fit
from gateway.errors import StorageUnavailable
from gateway.notation.problems import Unexpected
from gateway.notation.quantities import format_duration, parse_duration
from gateway.operate.status.look import read_status
from gateway.operate.status.report import Status
from gateway.settings import Settings, discover, load_settings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: one array, all of it.")]
OFTEN: Final = timedelta(milliseconds=200)
SELDOM: Final = timedelta(hours=1)
FOOTER_ROWS: Final = 2
"""With the empty one above it."""

Read = Callable[[], Awaitable[Status]]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(status)


def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")
    ] = False,
    every: Annotated[str, typer.Option("--every", help="With --watch: how often.")] = "2s",
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """One screen: what needs attention first, then rates, backlog, handlers, engines and workers.

    Exit 1 where the database cannot be reached; Redis and the spool are shown all the same.

    Example: [bold]gateway status --watch[/bold]
    """
    settings = discover(load_settings())
    read = _reader(settings, url)
    if watch:
        if as_json:
            raise typer.BadParameter("not together with --json", param_hint="--watch")
        _watch(read, _interval(every))
        return
    report = asyncio.run(_once(read))
    if as_json:
        print_json([report])
    else:
        out = console()
        out.print(draw(report, out.width))
    if not report["postgres"]["reachable"]:
        raise typer.Exit(1)


def _reader(settings: Settings, url: str | None) -> Read:
    async def ask() -> Status:
        async with open_desk(settings, url, who()) as desk:
            return await desk.ask(STATUS, StatusParams())

    async def look() -> Status:
        return await read_status(settings)

    return look if url is None else ask


async def _once(read: Read) -> Status:
    return await read()


def _interval(text: str) -> timedelta:
    expected = f"{format_duration(OFTEN)} to {format_duration(SELDOM)}"
    try:
        interval = parse_duration(text)
    except Unexpected as error:
        found, expected = error.found, error.expected
    else:
        if OFTEN <= interval <= SELDOM:
            return interval
        found = text
    raise typer.BadParameter(f"found {found}; expected {expected}", param_hint="--every")


def _watch(read: Read, every: timedelta) -> None:
    """Until Ctrl-C, which is how it is meant to end."""
    try:
        asyncio.run(_show_forever(read, every))
    except KeyboardInterrupt:
        return


async def _show_forever(read: Read, every: timedelta) -> None:
    out = console()
    if not sys.stdout.isatty():
        while True:
            out.print(await _drawn(read, out))
            await asyncio.sleep(every.total_seconds())
    footer = Text(f"every {format_duration(every)}; Ctrl-C ends", style="dim")
    with Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_above(await _drawn(read, out), footer), refresh=True)
            await asyncio.sleep(every.total_seconds())


async def _drawn(read: Read, out: Console) -> RenderableType:
    try:
        report = await read()
        if not out.is_terminal:
            return draw(report, out.width)
        return draw_to_fit(report, out, out.height - FOOTER_ROWS)
    except StorageUnavailable as error:  # of a gateway far away: it may come back
        return Text(printable(str(error)), style="red")


def _above(screen: RenderableType, footer: Text) -> RenderableType:
    return Group(screen, Text(), footer)
