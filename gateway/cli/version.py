"""The option `gateway --version`: the versions of the code and of its schema."""

import platform
from importlib.metadata import version
from typing import Annotated, Final

import typer

from gateway.ledger.migrate import read_migrations

DISTRIBUTION: Final = "webhook-gateway-server"


def register(app: typer.Typer) -> None:
    app.callback()(_options)


def _tell(is_asked: bool) -> None:
    if is_asked:
        schema = read_migrations()[-1].version
        typer.echo(
            f"gateway {version(DISTRIBUTION)}, schema {schema}, Python {platform.python_version()}"
        )
        raise typer.Exit


def _options(
    is_asked: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version of the code, and of the schema that it needs.",
            callback=_tell,
            is_eager=True,
        ),
    ] = False,
) -> None: ...
