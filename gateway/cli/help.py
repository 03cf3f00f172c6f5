"""The help of commands, made of their docstrings."""

import inspect

import typer

EXAMPLES = "Example"
"""So begins a paragraph whose lines stay as they are: each is a command."""


def join_lines(app: typer.Typer) -> None:
    """Lets paragraphs flow: the lines of a docstring are longer than those of many a terminal, and
    typer would break them a second time."""
    for command in app.registered_commands:
        if command.callback is not None:
            told = inspect.getdoc(command.callback) or ""
            command.help = "\n\n".join(map(_joined, told.split("\n\n")))


def _joined(paragraph: str) -> str:
    return paragraph if paragraph.startswith(EXAMPLES) else paragraph.replace("\n", " ")
