"""`rehearse`: whether handlers stand to be run twice."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.logs import configure_logs
from gateway.project import load_project
from gateway.samples import load_recorded
from gateway.settings import load_settings

FAILED = 1


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(rehearse)


def rehearse(
    handlers: Annotated[
        list[str] | None,
        typer.Argument(help="Handlers, by name or by the name of the function; default: all."),
    ] = None,
    events: Annotated[
        list[Path] | None,
        typer.Option("--event", help="A recorded event to try them on, instead of samples."),
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
    """Ask whether each handler stands to be run twice: in a row, at once, killed, out of order.

    On a throwaway database with your schema, offline: nothing is sent, and your own database is not
    touched. Exit 1 on a finding. Good as a step of your build.

    Examples: [bold]gateway rehearse[/bold], [bold]gateway rehearse fulfil_order[/bold],
    [bold]gateway rehearse follow_invoice --event invoice.json[/bold]
    """
    from gateway.cli.rehearsed import rehearse_and_tell  # 0.1 s that no other command needs
    from gateway.testing.rehearse import Request
    from gateway.testing.rehearse.answers import load_answers
    from gateway.testing.rehearse.guard import guarding_imports

    settings = load_settings()
    with guarding_imports(Path.cwd()):
        project = load_project(settings)
    url = settings.test_database_url
    request = Request(
        project=project,
        handlers=tuple(handlers or ()),
        recorded={str(file): load_recorded(file) for file in events or ()},
        seeds=tuple(seeds or ()),
        answers=[answer for file in answers or () for answer in load_answers(file)],
        reads=tuple(reads or ()),
        server_url=None if url is None else url.get_secret_value(),
    )
    configure_logs("auto", "error")
    if not rehearse_and_tell(request, as_json=as_json):
        raise typer.Exit(FAILED)
