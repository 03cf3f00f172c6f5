"""The commands `pause` and `resume`."""

from typing import Annotated

import typer

from gateway.api.operations.pauses import PAUSE, RESUME, PauseParams, ResumeParams
from gateway.cli.asking import Reason, Url, ask, given
from gateway.cli.output import cell, console, printable

Route = Annotated[str, typer.Argument(help="The route.")]
OneHandler = Annotated[
    str | None, typer.Argument(metavar="[HANDLER]", help="One handler of it; without: all.")
]


def register(app: typer.Typer) -> None:
    app.command()(pause)
    app.command()(resume)


def pause(
    route: Route,
    reason: Annotated[str, typer.Option("--reason", help="Why, for `gateway status`.")],
    handler: OneHandler = None,
    url: Url = None,
) -> None:
    """Pause a route's handlers, or one of them, in all workers, until someone resumes them.

    Events are accepted as before, and waiting deliveries are not pruned. Running deliveries may
    finish. When this command returns, no more deliveries are started.

    Example: [bold]gateway pause stripe handlers.mail.send --reason "mail is down"[/bold]
    """
    params = PauseParams(route=route, reason=reason, **given(handler=handler))
    paused = ask(url, PAUSE, params)
    what = _name(route, handler)
    if paused["is_new"]:
        console().print(f"{what}: paused", markup=False)
    else:
        console().print(
            f"{what}: was paused {cell(paused['since'])}, and has a new reason now", markup=False
        )
    if paused["running"]:
        console().print(f"Begun before, and may finish: {paused['running']:,}")
    console().print(f"Waiting, as will what comes in: {paused['waiting']:,}")


def resume(
    route: Route, handler: OneHandler = None, reason: Reason = None, url: Url = None
) -> None:
    """End a pause: waiting deliveries run now.

    Example: [bold]gateway resume stripe handlers.mail.send[/bold]
    """
    resumed = ask(url, RESUME, ResumeParams(route=route, **given(handler=handler, reason=reason)))
    what = _name(route, handler)
    console().print(f"{what}: resumed, was paused {cell(resumed['since'])}", markup=False)
    for other in resumed["still_paused"]:
        whose = _name(other["route"], other["handler"])
        console().print(f"{whose} is still paused, by itself.", markup=False)
    console().print(f"Waiting until now: {resumed['waiting']:,}")


def _name(route: str, handler: str | None) -> str:
    return printable(route if handler is None else f"{route} {handler}")
