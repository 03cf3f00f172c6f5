"""How commands speak: tables and one-line errors for people, JSON for programs."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.notation.quantities import format_roughly

PIPE_WIDTH: Final = 240
"""Where nobody's terminal says how wide it is, a row stays on one line."""

COLOURS: Final = {
    "done": "green",
    "pending": "yellow",
    "running": "cyan",
    "dead": "bold red",
    "discarded": "dim",
}


def console() -> Console:
    """Standard output."""
    return Console(
        width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False
    )


def complain(message: str) -> None:
    """One clear line per problem, on standard error."""
    mark = "\x1b[1;31merror:\x1b[0m" if sys.stderr.isatty() else "error:"
    for line in message.splitlines():
        typer.echo(f"{mark} {line}", err=True)


def print_json(value: Any) -> None:
    """One document, times as ISO 8601 in UTC."""
    text = orjson.dumps(
        value,
        default=str,
        option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE,
    )
    sys.stdout.write(text.decode())


def print_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, empty: str) -> int:
    """A table of these columns; says what it means where there is no row."""
    table = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    count = 0
    for row in rows:
        table.add_row(*(cell(row.get(column)) for column in columns))
        count += 1
    if count:
        console().print(table)
    else:
        console().print(empty)
    return count


def cell(value: Any) -> Text:
    """A value as text that cannot be taken for markup, nor steer the terminal."""
    match value:
        case None:
            return Text("-", style="dim")
        case datetime():
            return Text(ago(value))
        case Mapping():
            return Text(" ").join(Text(f"{n} {k}", COLOURS.get(k, "")) for k, n in value.items())
        case _:
            text = printable(str(value))
            return Text(text, style=COLOURS.get(text, ""))


def printable(text: str) -> str:
    """Text from strangers, with its control characters made visible."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def ago(at: datetime) -> str:
    """How long since, or until, in one unit."""
    since = datetime.now(UTC) - at
    text = format_roughly(abs(since))
    return f"{text} ago" if since >= timedelta() else f"in {text}"
