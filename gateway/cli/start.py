"""The commands `init` and `new`: create a project and add handlers."""

import os
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.output import console
from gateway.config.development import development_secrets
from gateway.config.settings import load_settings
from gateway.dev.new_handler import HandlerRequest, write_handler
from gateway.dev.new_project import STARTERS, write_project
from gateway.providers import PROVIDERS


class NewKind(StrEnum):
    """The things that `new` can create."""

    HANDLER = "handler"


class StarterName(StrEnum):
    """The providers for which `init` has a route and a handler."""

    STRIPE = "stripe"
    GITHUB = "github"


def register(app: typer.Typer) -> None:
    app.command()(init)
    app.command()(new)


def init(
    directory: Annotated[Path, typer.Argument(help="Where; it is made if need be.")] = Path(),
    provider: Annotated[
        list[StarterName] | None,
        typer.Option("--provider", help="Who sends; stripe by default. May be given twice."),
    ] = None,
) -> None:
    """Make a project that works at once: routes, a handler with its table and test, compose file.

    Overwrites nothing: if one of the files exists with other content, no file is written.

    Example: [bold]gateway init shop[/bold], then [bold]cd shop[/bold] and
    [bold]gateway up --reload[/bold]
    """
    providers = provider or [StarterName.STRIPE]
    data_dir = directory / load_settings().data_dir
    made = write_project(directory, providers)
    for name in providers:
        reference, make = f"env:{STARTERS[name].secret}", PROVIDERS[name].make_secret
        development_secrets(data_dir, [reference], os.environ, make=make)
    out = console()
    for path in made:
        out.print(f"  made  {path}", markup=False)
    if not made:
        out.print("  all of it is there already", markup=False)
    out.print("\n  Next:", markup=False)
    if directory.resolve() != Path.cwd():
        out.print(f"    cd {shlex.quote(str(directory))}", markup=False)
    out.print("    gateway up --reload", markup=False)
    out.print(f"    gateway send {STARTERS[providers[0]].send}   # in another terminal")
    out.print("    pytest\n", markup=False)


def new(
    kind: Annotated[NewKind, typer.Argument(help="What to add.", show_default=False)],
    route: Annotated[str, typer.Argument(help="A route of routes.yaml.")],
    type: Annotated[str, typer.Argument(help="An event type, such as invoice.paid.")],
    event: Annotated[
        Path | None,
        typer.Option("--event", help="A recorded event (`gateway show ID --save FILE`)."),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("--module", help="The new module; default: named after the function."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Of the function; default: on_ and the type.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also for a type that the provider is not known to send."),
    ] = False,
) -> None:
    """Add a handler for an event type, in a module of its own, with its table and its test.

    The code is generated from the sample of the type, or from a recorded event of yours. Either all
    files are written or none. If the route's list of handlers is not on one line, the line to put
    there is shown instead.

    Example: [bold]gateway new handler stripe invoice.paid[/bold]
    """
    request = HandlerRequest(
        route=route, type=type, event=event, module=module, name=name, force=force
    )
    config = load_settings().config
    made = write_handler(config, request)
    out = console()
    for path in made.files:
        out.print(f"  wrote  {path}", markup=False)
    if made.is_guess:
        out.print(f"  notice: there is no sample of {type}: look at what it reads", markup=False)
        out.print(
            "  (better: record an event, `gateway show ID --save FILE`, and pass --event FILE)"
        )
    out.print("\n  Next:", markup=False)
    for line in made.to_add:
        out.print(f"    put into {config}:  {line}", markup=False, soft_wrap=True)
    out.print(f"    pytest {made.test}", markup=False)
    out.print(f"    gateway rehearse {made.name}\n", markup=False)
