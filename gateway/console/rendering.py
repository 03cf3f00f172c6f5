"""Format values for pages. All external data is shown as text."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gateway.base.units import format_roughly

HIDDEN: Final = {
    code: f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
    for code in (
        *range(0x09),
        *range(0x0B, 0x20),
        *range(0x7F, 0xA0),
        *range(0x200B, 0x2010),
        *range(0x2028, 0x202F),
        *range(0x2060, 0x2070),
        *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x180E, 0x3164, 0xFEFF, 0xFFA0),
        *range(0xFFF9, 0xFFFC),
        *range(0x1D173, 0x1D17B),
        *range(0xE0000, 0xE0080),
    )
}
"""Invisible characters (controls, bidirectional marks, letters without a glyph) and their escapes.
They are shown escaped, because they could make a page show other text than was sent.
"""

UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def plain(value: object) -> str:
    """Return the text with invisible characters escaped."""
    return str(value).translate(HIDDEN)


def moment(at: datetime | None, *, date: bool = True) -> Markup:
    """Format a time in UTC. The script converts it to the viewer's time zone."""
    if at is None:
        return Markup("")
    at = at.astimezone(UTC)
    exact = at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    shown = at.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S")
    return Markup('<time datetime="{}" title="{}" data-shown="{}">{}</time>').format(
        at.isoformat(), exact, "date" if date else "time", shown
    )


def age(at: datetime | None, now: datetime) -> Markup:
    """Format the age of a time, with the exact time as a tooltip."""
    if at is None:
        return Markup("")
    exact = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    past = now - at
    words = f"{format_roughly(past)} ago" if past > timedelta(seconds=1) else "now"
    return Markup('<time datetime="{}" title="{}" data-shown="age">{}</time>').format(
        at.isoformat(), exact, words
    )


def count(number: float | None) -> str:
    return "" if number is None else f"{number:,}"


def milliseconds(ms: float | None) -> str:
    """Format a duration with a suitable unit."""
    if ms is None:
        return "–"  # noqa: RUF001 (a dash, not a minus)
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else format_roughly(timedelta(milliseconds=ms))


def took(started_at: datetime, finished_at: datetime) -> str:
    return milliseconds((finished_at - started_at).total_seconds() * 1000)


def size(number: int | None) -> str:
    if number is None:
        return ""
    shown, unit = float(number), 0
    while shown >= 1024 and unit < len(UNITS) - 1:
        shown, unit = shown / 1024, unit + 1
    return f"{shown:,.0f} {UNITS[unit]}" if unit == 0 else f"{shown:,.1f} {UNITS[unit]}"


def percent(share: float | None) -> str:
    if share is None:
        return "–"  # noqa: RUF001 (a dash, not a minus)
    return "100 %" if share == 1 else f"{min(share * 100, 99.9):.1f} %"


def code(text: str) -> Markup:
    """Mark up text in backticks as code."""
    parts = escape(plain(text)).split("`")
    marked = (Markup("<code>{}</code>").format(p) if n % 2 else p for n, p in enumerate(parts))
    return Markup("").join(marked)


def _make_templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("gateway.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_finalize,
    )
    filters: dict[str, Any] = {
        f.__name__: f for f in (plain, moment, age, count, milliseconds, size, percent, code)
    }
    environment.filters.update(filters)
    environment.globals["took"] = took
    return environment


def _finalize(value: object) -> object:
    """Escape invisible characters in every value on a page, including values without a filter."""
    if isinstance(value, Markup):
        return value
    return plain(value) if isinstance(value, str) else value


TEMPLATES: Final = _make_templates()
