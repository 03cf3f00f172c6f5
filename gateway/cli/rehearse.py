"""The command `rehearse`: check that handlers are safe to run again."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.base.errors import CommandFailed
from gateway.config.project import Project, load_project
from gateway.config.settings import load_settings
from gateway.providers.samples import Recorded, load_recorded, says_its_type
from gateway.telemetry.logs import configure_logs

FAILED = 1


def register(app: typer.Typer) -> None:
    app.command()(rehearse)


def rehearse(
    handlers: Annotated[
        list[str] | None,
        typer.Argument(help="Handlers, by name or by the name of the function; default: all."),
    ] = None,
    events: Annotated[
        list[Path] | None,
        typer.Option(
            "--event",
            help="A file with an event to try them on, instead of samples: recorded by"
            " [bold]gateway show --save[/bold], or the JSON that the provider shows.",
        ),
    ] = None,
    type: Annotated[
        str | None,
        typer.Option(help="The type of an --event that does not say it: push, issues.opened."),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(help="The sender of such an event, if the handlers have several."),
    ] = None,
    seeds: Annotated[
        list[Path] | None,
        typer.Option("--seed", help="SQL that fills your tables; run once, after your schema."),
    ] = None,
    answers: Annotated[
        list[Path] | None,
        typer.Option(help="JSON: what requests of ctx.http and ctx.stripe are answered with."),
    ] = None,
    reads: Annotated[
        list[str] | None,
        typer.Option(help="An address (* is any text) at which a POST only reads."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array instead of a report.")
    ] = False,
) -> None:
    """Check that handlers are safe to run again: repeated, concurrent, killed, out of order.

    Uses a throwaway database with your schema, offline: nothing is sent, and your own database is
    not touched. Exit 1 on a finding, so it works as a step of your build.

    Examples: [bold]gateway rehearse[/bold], [bold]gateway rehearse fulfil_order[/bold],
    [bold]gateway rehearse follow_invoice --event invoice.json[/bold]
    """
    from gateway.cli.rehearsed import rehearse_and_print  # imported late: it takes 0.1 s
    from gateway.testing.rehearse import Request
    from gateway.testing.rehearse.isolation import guarding_imports
    from gateway.testing.rehearse.server_process import confined
    from gateway.testing.rehearse.services import load_answers

    if (type or provider) and not events:
        raise typer.BadParameter("--type and --provider describe a file: add --event FILE")
    settings = load_settings()
    with confined() as server_process:  # before any code of the project runs
        with guarding_imports(Path.cwd()):
            project = load_project(settings)
        url = settings.test_database_url
        request = Request(
            project=project,
            handlers=tuple(handlers or ()),
            recorded={
                str(file): _load_event(file, project, provider, type) for file in events or ()
            },
            seeds=tuple(seeds or ()),
            answers=[answer for file in answers or () for answer in load_answers(file)],
            reads=tuple(reads or ()),
            server_url=None if url is None else url.get_secret_value(),
        )
        configure_logs("auto", "error")
        if not rehearse_and_print(request, server_process, as_json=as_json):
            raise typer.Exit(FAILED)


def _load_event(file: Path, project: Project, provider: str | None, type: str | None) -> Recorded:
    """Read an event. Provider and type come from options and routes if the file lacks them."""
    if says_its_type(file):
        return load_recorded(file)
    names = {route.provider.name for route in project.config.routes if not route.provider.is_queue}
    others = sorted(names - {"stripe"})
    if provider is None:
        if len(others) != 1:
            raise CommandFailed(
                f"{file}: the body does not say whose it is: add --provider and --type"
                + (f" (your routes have {', '.join(others)})" if others else "")
            )
        [provider] = others
    if type is None:
        raise CommandFailed(
            f"{file}: a body of {provider} does not say its type, which is in a header: add --type,"
            " such as --type issues.opened"
        )
    return load_recorded(file, provider=provider, type=type)
