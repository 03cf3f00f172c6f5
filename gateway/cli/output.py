"""Output of commands: tables and one-line errors for people, JSON for programs."""

import inspect
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

from gateway.base.units import format_roughly

EXAMPLES = "Example"
"""A paragraph that starts with this word keeps its line breaks, because each line is a command."""


def join_lines(app: typer.Typer) -> None:
    """Join the lines of each paragraph in the help.

    Docstring lines are wider than many terminals, and typer would keep their line breaks and wrap
    them again.
    """
    for command in app.registered_commands:
        if command.callback is not None:
            told = inspect.getdoc(command.callback) or ""
            command.help = "\n\n".join(map(_joined, told.split("\n\n")))


def _joined(paragraph: str) -> str:
    return paragraph if paragraph.startswith(EXAMPLES) else paragraph.replace("\n", " ")


PIPE_WIDTH: Final = 240
"""Width of the output if it is not a terminal, so that each row stays on one line."""

COLOURS: Final = {
    "done": "green",
    "pending": "yellow",
    "running": "cyan",
    "dead": "bold red",
    "discarded": "dim",
}


def console() -> Console:
    """Return a console for standard output."""
    return Console(
        width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False
    )


def complain(message: str) -> None:
    """Print an error to standard error, one line per problem."""
    mark = "\x1b[1;31merror:\x1b[0m" if sys.stderr.isatty() else "error:"
    for line in message.splitlines():
        typer.echo(f"{mark} {line}", err=True)


def print_json(value: Any) -> None:
    """Print one JSON document, with times as ISO 8601 in UTC."""
    text = orjson.dumps(
        value,
        default=str,
        option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE,
    )
    sys.stdout.write(text.decode())


def print_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, empty: str) -> int:
    """Print a table with these columns, or the text `empty` if there are no rows."""
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
    """Format a value as text without markup or control characters."""
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
    """Escape control characters in untrusted text."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Escape control characters in untrusted text, but keep its lines."""
    return "\n".join(printable(line) for line in text.splitlines())


def ago(at: datetime) -> str:
    """Format the time since or until `at`, in one unit."""
    since = datetime.now(UTC) - at
    text = format_roughly(abs(since))
    return f"{text} ago" if since >= timedelta() else f"in {text}"
