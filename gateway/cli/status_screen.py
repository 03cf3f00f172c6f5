"""The screen of `status`: what needs attention on top, then figures, each kind in one table."""

from bisect import bisect
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.cli.output import printable
from gateway.notation.quantities import (
    format_count,
    format_duration,
    format_roughly,
    format_size_roughly,
)
from gateway.operate.keys import describe_key, in_use
from gateway.operate.status.report import (
    Attention,
    HandlerState,
    OrderState,
    ReconcileState,
    RouteState,
    SecretState,
    Status,
)
from gateway.operate.status.secrets import can_go, describe_expiry, has_rotation

WIDE: Final = 100
MARKS: Final = {"problem": "bold red", "warning": "yellow"}
POOR: Final = 0.9
"""Under this share of successes the figure is coloured."""

FEWEST: Final = 3
"""Handlers that are shown however low the screen is."""

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


def draw(status: Status, width: int, most: int | None = None) -> RenderableType:
    """All of it, for people with so many columns; `most`: so many handlers at the most."""
    gap = 2 if width >= WIDE else 1
    parts: list[RenderableType] = [_head(status), Text()]
    if status["postgres"]["reachable"]:
        parts += [_requests(status, gap), Text(), _handlers(status, gap, most), Text()]
    parts.append(_foot(status))
    return Group(*parts)


def draw_to_fit(status: Status, console: Console, rows: int) -> RenderableType:
    """As many handlers as leave room for the rest: a screen that is redrawn cannot be scrolled."""

    def is_too_tall(most: int) -> bool:
        return len(console.render_lines(draw(status, console.width, most), pad=False)) > rows

    fitting = bisect(range(len(status["handlers"]) + 1), 0, key=is_too_tall) - 1
    return draw(status, console.width, max(fitting, FEWEST))


def _head(status: Status) -> RenderableType:
    if not status["attention"]:
        return Text("All is well.", style="green")
    table = _grid()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for attention in status["attention"]:
        table.add_row(*_attention(attention))
    return table


def _attention(attention: Attention) -> tuple[Text, Text]:
    level = attention["level"]
    told = Text(printable(attention["text"]))
    told.append(f"\n{printable(attention['advice'])}", style="dim")
    return Text(level, style=MARKS[level]), told


def _requests(status: Status, gap: int) -> RenderableType:
    table = _table(gap, "\nroute", *REQUESTS)
    for route in status["routes"]:
        table.add_row(*_route(route, status["at"]))
    if not status["routes"]:
        return Text("No route has had a request.")
    return table


def _route(route: RouteState, now: datetime) -> Iterator[Text]:
    yield Text(printable(route["route"]))
    for requests in (route["minutes"], route["hour"]):
        yield _count(requests["accepted"])
        yield _count(requests["duplicate"])
        yield _count(requests["refused"], style="yellow")
    yield _ms(route["p50_ms"])
    yield _ms(route["p99_ms"])
    yield _since(route["last_event_at"], now)


def _handlers(status: Status, gap: int, most: int | None) -> RenderableType:
    table = _table(gap, "\nhandler", *HANDLERS)
    route = None
    needy = sorted(status["handlers"], key=_calm)[:most]
    for handler in (handler for handler in status["handlers"] if handler in needy):
        if handler["route"] != route:
            route = handler["route"]
            table.add_row(Text(printable(route), style="bold"))
        table.add_row(*_handler(handler, status["at"]))
        if handler["note"] is not None:
            table.add_row(Text(f"  {printable(handler['note'])}", style="yellow"))
    if not status["handlers"]:
        return Text("No handler has run in the last hour, and nothing waits.")
    if left := len(status["handlers"]) - len(needy):
        return Group(table, Text(f"and {format_count(left, 'more handler')}", style="dim"))
    return table


def _calm(handler: HandlerState) -> tuple[bool, bool, bool]:
    """What nobody needs to look at comes last, and is left out first."""
    is_poor = handler["success"] is not None and handler["success"] < POOR
    return not (handler["dead"] or handler["note"]), not handler["pending"], not is_poor


def _handler(handler: HandlerState, now: datetime) -> Iterator[Text]:
    yield Text(printable(handler["handler"]))
    yield _count(handler["pending"], more="pending" in handler["capped"])
    yield _since(handler["oldest_due_at"], now)
    yield _count(handler["running"])
    yield _count(handler["dead"], style="bold red", more="dead" in handler["capped"])
    yield _count(handler["runs"])
    yield _share(handler["success"])
    yield _ms(handler["p50_ms"])
    yield _ms(handler["p99_ms"])


def _foot(status: Status) -> RenderableType:
    table = _grid()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("Postgres", _postgres(status))
    table.add_row("Redis", _redis(status))
    if status["postgres"]["reachable"]:
        table.add_row("Workers", _workers(status))
    table.add_row("Spool", _spool(status))
    for route in status["routes"]:
        if has_rotation(route):
            table.add_row("Secrets", _secrets(route, status["at"]))
    for key in status["keys"]:
        if in_use(key) or key["encrypts"]:
            table.add_row("Key", Text(describe_key(key), style="" if in_use(key) else "dim"))
    for run in status["reconciles"]:
        table.add_row("Reconcile", _reconcile(run, status["at"]))
    for order in status["orders"]:
        table.add_row("Order", _order(order))
    if status["postgres"]["reachable"]:
        table.add_row("Counts", Text(_lag(status), style="dim"))
    table.add_row("Time", Text(f"{status['at']:%Y-%m-%d %H:%M:%S} UTC", style="dim"))
    return table


def _lag(status: Status) -> str:
    lag = format_duration(timedelta(seconds=status["counts_lag_s"]))
    return f"requests and runs lag by up to {lag}; waiting, running and dead do not"


def _postgres(status: Status) -> Text:
    server = status["postgres"]
    if not server["reachable"]:
        return Text("away", style="bold red")
    return Text(
        f"{printable(str(server['version']).split()[0])}, schema {server['schema_version']},"
        f" {format_size_roughly(server['size_bytes'] or 0)}, {server['connections']} of"
        f" {server['max_connections']} connections"
    )


def _redis(status: Status) -> Text:
    server = status["redis"]
    if not server["reachable"]:
        return Text("away", style="yellow")
    return Text(
        f"{printable(str(server['version']))}, {format_size_roughly(server['memory_bytes'] or 0)},"
        f" {server['jobs']:,} wake-ups waiting"
    )


def _workers(status: Status) -> Text:
    if not status["workers"]:
        return Text("none alive", style="bold red")
    hosts: dict[str, int] = {}
    for worker in status["workers"]:
        hosts[worker["host"]] = hosts.get(worker["host"], 0) + 1
    where = ", ".join(f"{n} on {printable(host)}" for host, n in sorted(hosts.items()))
    return Text(f"{len(status['workers'])} alive: {where}")


def _reconcile(run: ReconcileState, now: datetime) -> Text:
    when = format_roughly(now - (run["finished_at"] or run["started_at"]))
    style = "bold red" if run["status"] == "failed" else ""
    found = f"{run['missing']:,} missing, {run['recovered']:,} recovered"
    return Text(f"{printable(run['route'])} {run['status']} {when} ago: {found}", style=style)


def _secrets(route: RouteState, now: datetime) -> Text:
    told = [_secret(secret, route, now) for secret in route["secrets"]]
    return Text(printable(f"{route['route']}: {'; '.join(told)}"))


def _secret(secret: SecretState, route: RouteState, now: datetime) -> str:
    used_at, ends = secret["last_used_at"], secret["expires_at"]
    told = f"{secret['secret']} "
    told += "never used" if used_at is None else f"used {format_roughly(now - used_at)} ago"
    if ends is not None:
        told += f", {describe_expiry(ends, now)}"
    is_over = secret["expired"] and not all(one["expired"] for one in route["secrets"])
    return f"{told}: it can go" if is_over or can_go(secret, route, now) else told


def _order(order: OrderState) -> Text:
    done = f"{order['moved']:,} of {order['total']:,}"
    style = "yellow" if order["is_idle"] else ""
    return Text(f"{order['id']}, {order['action']} by {printable(order['actor'])}: {done}", style)


def _spool(status: Status) -> Text:
    spool = status["spool"]
    where = f" (on {printable(spool['host'])})"
    if not spool["events"]:
        return Text(f"empty{where}")
    told = f"{spool['events']:,} events, {format_size_roughly(spool['bytes'])}"
    if spool["oldest_at"] is not None:
        told += f", the oldest for {format_roughly(status['at'] - spool['oldest_at'])}"
    return Text(told + where, style="yellow")


def _grid() -> Table:
    return Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))


def _table(gap: int, first: str, *figures: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    table.add_column(first, overflow="fold", min_width=8)
    for figure in figures:
        table.add_column(figure, justify="right", no_wrap=True)
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
