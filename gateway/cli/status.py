"""The command `status`: show the health snapshot once or continuously."""

import asyncio
import sys
from bisect import bisect
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.api.operation_client import open_desk
from gateway.api.operations.health import STATUS, StatusParams
from gateway.base.errors import StorageUnavailable
from gateway.base.problems import Unexpected
from gateway.base.units import (
    format_count,
    format_duration,
    format_roughly,
    format_size_roughly,
    parse_duration,
)
from gateway.cli.asking import AsJson, Url, who
from gateway.cli.output import console, print_json, printable, printable_lines
from gateway.config.settings import Settings, discover, load_settings
from gateway.ledger.bulk import BulkOperation
from gateway.operations.encryption import describe_key, in_use
from gateway.operations.health.attention import describe_expiry
from gateway.operations.health.reading import read_snapshot_alone
from gateway.operations.health.snapshot import (
    AttentionLine,
    HandlerState,
    HealthSnapshot,
    ReconcileState,
    RouteState,
    SecretState,
)

WIDE: Final = 100
MARKS: Final = {"problem": "bold red", "warning": "yellow"}
POOR: Final = 0.9
"""A success rate below this is colored."""

FEWEST: Final = 3
"""Minimum number of handlers shown, however low the screen is."""

REQUESTS: Final = (
    *("5 min\naccepted", "\ndup.", "\nrefused"),
    *("hour\naccepted", "\ndup.", "\nrefused"),
    *("answered\np50", "\np99", "last\nevent"),
)
HANDLERS: Final = (
    *("now\nwaiting", "\nsince", "\nrunning", "\ndead"),
    *("hour\nruns", "\nok", "\np50", "\np99"),
)
NOTHING: Final = Text("-", style="dim")


def draw(status: HealthSnapshot, width: int, most: int | None = None) -> RenderableType:
    """Draw the snapshot for a width in columns, with at most `most` handlers."""
    gap = 2 if width >= WIDE else 1
    parts: list[RenderableType] = [_head(status), Text()]
    if status.postgres.reachable:
        parts += [_requests(status, gap), Text(), _handlers(status, gap, most), Text()]
    parts.append(_foot(status))
    return Group(*parts)


def draw_to_fit(status: HealthSnapshot, console: Console, rows: int) -> RenderableType:
    """Draw as many handlers as fit, because a screen that is redrawn cannot be scrolled."""

    def is_too_tall(most: int) -> bool:
        return len(console.render_lines(draw(status, console.width, most), pad=False)) > rows

    fitting = bisect(range(len(status.handlers) + 1), 0, key=is_too_tall) - 1
    return draw(status, console.width, max(fitting, FEWEST))


def _head(status: HealthSnapshot) -> RenderableType:
    if not status.attention:
        return Text("All is well.", style="green")
    table = _grid()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for attention in status.attention:
        table.add_row(*_attention(attention))
    return table


def _attention(attention: AttentionLine) -> tuple[Text, Text]:
    level = attention.level
    told = Text(printable(attention.text))
    told.append(f"\n{printable_lines(attention.advice)}", style="dim")
    return Text(level, style=MARKS[level]), told


def _requests(status: HealthSnapshot, gap: int) -> RenderableType:
    table = _table(gap, "\nroute", *REQUESTS)
    for route in status.routes:
        table.add_row(*_route(route, status.at))
    if not status.routes:
        return Text("No route has had a request.")
    return table


def _route(route: RouteState, now: datetime) -> list[Text]:
    counts = [
        count
        for requests in (route.minutes, route.hour)
        for count in (
            _count(requests.accepted),
            _count(requests.duplicate),
            _count(requests.refused, style="yellow"),
        )
    ]
    times = [_ms(route.p50_ms), _ms(route.p99_ms), _since(route.last_event_at, now)]
    return [Text(printable(route.route)), *counts, *times]


def _handlers(status: HealthSnapshot, gap: int, most: int | None) -> RenderableType:
    table = _table(gap, "\nhandler", *HANDLERS)
    route = None
    needy = sorted(status.handlers, key=_calm)[:most]
    for handler in (handler for handler in status.handlers if handler in needy):
        if handler.route != route:
            route = handler.route
            table.add_row(Text(printable(route), style="bold"))
        table.add_row(*_handler(handler, status.at))
        if handler.note is not None:
            table.add_row(Text(f"  {printable(handler.note)}", style="yellow"))
    if not status.handlers:
        return Text("No handler has run in the last hour, and nothing waits.")
    if left := len(status.handlers) - len(needy):
        return Group(table, Text(f"and {format_count(left, 'more handler')}", style="dim"))
    return table


def _calm(handler: HandlerState) -> tuple[bool, bool, bool]:
    """Sort key: handlers in good state come last, and are left out first."""
    is_poor = handler.success is not None and handler.success < POOR
    return not (handler.dead or handler.note), not handler.pending, not is_poor


def _handler(handler: HandlerState, now: datetime) -> list[Text]:
    return [
        Text(printable(handler.handler)),
        _count(handler.pending, more="pending" in handler.capped),
        _since(handler.oldest_due_at, now),
        _count(handler.running),
        _count(handler.dead, style="bold red", more="dead" in handler.capped),
        _count(handler.runs),
        _share(handler.success),
        _ms(handler.p50_ms),
        _ms(handler.p99_ms),
    ]


def _foot(status: HealthSnapshot) -> RenderableType:
    table = _grid()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("Postgres", _postgres(status))
    table.add_row("Redis", _redis(status))
    if status.postgres.reachable:
        table.add_row("Workers", _workers(status))
    table.add_row("Spool", _spool(status))
    for route in status.routes:
        if route.has_rotation:
            table.add_row("Secrets", _secrets(route, status.at))
    for key in status.keys:
        if in_use(key) or key["encrypts"]:
            table.add_row("Key", Text(describe_key(key), style="" if in_use(key) else "dim"))
    for run in status.reconciles:
        table.add_row("Reconcile", _reconcile(run, status.at))
    for bulk in status.bulk:
        table.add_row("Bulk operation", _bulk(bulk))
    if status.postgres.reachable:
        table.add_row("Counts", Text(_lag(status), style="dim"))
    table.add_row("Time", Text(f"{status.at:%Y-%m-%d %H:%M:%S} UTC", style="dim"))
    return table


def _lag(status: HealthSnapshot) -> str:
    lag = format_duration(timedelta(seconds=status.counts_lag_s))
    return f"requests and runs lag by up to {lag}; waiting, running and dead do not"


def _postgres(status: HealthSnapshot) -> Text:
    server = status.postgres
    if not server.reachable:
        return Text("away", style="bold red")
    return Text(
        f"{printable(str(server.version).split()[0])}, schema {server.schema_version},"
        f" {format_size_roughly(server.size_bytes or 0)}, {server.connections} of"
        f" {server.max_connections} connections"
    )


def _redis(status: HealthSnapshot) -> Text:
    server = status.redis
    if not server.reachable:
        return Text("away", style="yellow")
    return Text(
        f"{printable(str(server.version))}, {format_size_roughly(server.memory_bytes or 0)},"
        f" {server.jobs:,} wake-ups waiting"
    )


def _workers(status: HealthSnapshot) -> Text:
    if not status.workers:
        return Text("none alive", style="bold red")
    hosts = Counter(worker.host for worker in status.workers)
    where = ", ".join(f"{n} on {printable(host)}" for host, n in sorted(hosts.items()))
    return Text(f"{len(status.workers)} alive: {where}")


def _reconcile(run: ReconcileState, now: datetime) -> Text:
    when = format_roughly(now - (run.finished_at or run.started_at))
    style = "bold red" if run.status == "failed" else ""
    found = f"{run.missing:,} missing, {run.recovered:,} recovered"
    return Text(f"{printable(run.route)} {run.status} {when} ago: {found}", style=style)


def _secrets(route: RouteState, now: datetime) -> Text:
    told = [_secret(secret, route, now) for secret in route.secrets]
    return Text(printable(f"{route.route}: {'; '.join(told)}"))


def _secret(secret: SecretState, route: RouteState, now: datetime) -> str:
    used_at, ends = secret.last_used_at, secret.expires_at
    told = f"{secret.secret} "
    told += "never used" if used_at is None else f"used {format_roughly(now - used_at)} ago"
    if ends is not None:
        told += f", {describe_expiry(ends, now)}"
    is_over = secret.expired and not all(one.expired for one in route.secrets)
    return f"{told}: it can go" if is_over or route.can_go(secret, now) else told


def _bulk(bulk: BulkOperation) -> Text:
    done = f"{bulk['moved']:,} of {bulk['total']:,}"
    style = "yellow" if bulk["is_idle"] else ""
    return Text(f"{bulk['bulk_id']}, {bulk['action']} by {printable(bulk['actor'])}: {done}", style)


def _spool(status: HealthSnapshot) -> Text:
    spool = status.spool
    where = f" (on {printable(spool.host)})"
    if not spool.events:
        return Text(f"empty{where}")
    told = f"{spool.events:,} events, {format_size_roughly(spool.bytes)}"
    if spool.oldest_at is not None:
        told += f", the oldest for {format_roughly(status.at - spool.oldest_at)}"
    return Text(told + where, style="yellow")


def _grid() -> Table:
    return Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))


def _table(gap: int, first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    table.add_column(first, overflow="fold", min_width=8)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table


def _count(n: int, *, style: str = "", more: bool = False) -> Text:
    if not n:
        return Text("0", style="dim")
    return Text(f"{n:,}{'+' if more else ''}", style=style)


def _share(share: float | None) -> Text:
    if share is None:
        return NOTHING
    text = "100 %" if share == 1 else f"{min(share * 100, 99.9):.1f} %"
    return Text(text, style="" if share >= POOR else "bold red")


def _ms(ms: float | None) -> Text:
    if ms is None:
        return NOTHING
    if ms >= 10_000:
        return Text(f"{ms / 1000:,.0f} s")
    if ms >= 1000:
        return Text(f"{ms / 1000:.1f} s")
    return Text(f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms")


def _since(at: datetime | None, now: datetime) -> Text:
    return NOTHING if at is None else Text(format_roughly(now - at))


OFTEN: Final = timedelta(milliseconds=200)
SELDOM: Final = timedelta(hours=1)
FOOTER_ROWS: Final = 2
"""Includes the empty row above it."""

Read = Callable[[], Awaitable[HealthSnapshot]]


def register(app: typer.Typer) -> None:
    app.command()(status)


def status(
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    every: Annotated[str, typer.Option("--every", help="With --watch: how often.")] = "2s",
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Show the health snapshot: what needs attention, rates, backlog, handlers, engines, workers.

    Exit 1 if the database cannot be reached; Redis and the spool are still shown.

    Example: [bold]gateway status --watch[/bold]
    """
    settings = discover(load_settings())
    if watch:
        if as_json:
            raise typer.BadParameter("not together with --json", param_hint="--watch")
        with suppress(KeyboardInterrupt):  # the normal end
            asyncio.run(_show_forever(partial(_read, settings, url), _interval(every)))
        return
    report = asyncio.run(_read(settings, url))
    if as_json:
        print_json([report])
    else:
        out = console()
        out.print(draw(report, out.width))
    if not report.postgres.reachable:
        raise typer.Exit(1)


async def _read(settings: Settings, url: str | None) -> HealthSnapshot:
    if url is None:
        return await read_snapshot_alone(settings)
    async with open_desk(settings, url, who()) as desk:
        return await desk.ask(STATUS, StatusParams())


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


async def _show_forever(read: Read, every: timedelta) -> None:
    out = console()
    if not sys.stdout.isatty():
        while True:
            out.print(await _drawn(read, out))
            await asyncio.sleep(every.total_seconds())
    footer = Text(f"every {format_duration(every)}; Ctrl-C ends", style="dim")
    with Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            live.update(Group(await _drawn(read, out), Text(), footer), refresh=True)
            await asyncio.sleep(every.total_seconds())


async def _drawn(read: Read, out: Console) -> RenderableType:
    try:
        report = await read()
        if not out.is_terminal:
            return draw(report, out.width)
        return draw_to_fit(report, out, out.height - FOOTER_ROWS)
    except StorageUnavailable as error:  # the remote gateway may become available again
        return Text(printable(str(error)), style="red")
