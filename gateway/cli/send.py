"""The command `send`: send signed samples to a running gateway."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from gateway.base.errors import CommandFailed
from gateway.cli.output import console, printable
from gateway.config.development import read_up
from gateway.config.settings import Settings, discover, load_settings
from gateway.dev.known_types import doubt
from gateway.operations.send import Sender, Sent, make_sender

SHOWN = 10


def register(app: typer.Typer) -> None:
    app.command()(send)


def send(
    route: Annotated[str, typer.Argument(help="A route of routes.yaml.")],
    type: Annotated[str, typer.Argument(help="An event type, such as payment_intent.succeeded.")],
    count: Annotated[int, typer.Option("--count", min=1, help="How many, each a new one.")] = 1,
    body: Annotated[
        Path | None, typer.Option("--body", help="Send these bytes instead of a sample.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Where the gateway is; default: the running `up`.")
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(
            "--secret", help="Sign with this one: env:NAME or file:/path; default: the route's own."
        ),
    ] = None,
) -> None:
    """Sign a realistic sample with the route's own secret, send it, and show the response.

    A type that Stripe or GitHub is not known to send is sent too, with a notice. If the sender
    signs with a private key, the route only has the public one: give the private key with
    [bold]--secret[/bold].

    Examples: [bold]gateway send stripe payment_intent.succeeded[/bold],
    [bold]gateway send github push --count 100[/bold],
    [bold]gateway send stripe invoice.paid --body event.json --url https://hooks.example.com[/bold]
    """
    settings = discover(load_settings())
    where = url or running(settings)
    sender = make_sender(settings, route, type, body=body, url=where, secret=secret)
    if sender.doubt is not None:
        console().print(f"notice: {sender.doubt}", markup=False)
    if (doubted := doubt(sender.route.provider.name, type)) is not None:
        console().print(
            f"notice: {printable(doubted)}; it is sent all the same", markup=False, soft_wrap=True
        )
    sent = asyncio.run(_send(sender, count))
    if any(not s.ok for s in sent):
        raise CommandFailed(f"{sum(not s.ok for s in sent)} of {count} were not accepted")


def running(settings: Settings) -> str:
    """Return the URL of the running `up`, or else the configured host and port of `serve`."""
    up = read_up(settings.data_dir)
    return up.url if up is not None else f"http://{settings.host}:{settings.port}"


async def _send(sender: Sender, count: int) -> list[Sent]:
    out = console()
    sent: list[Sent] = []
    async for one in sender.send(count):
        sent.append(one)
        if len(sent) <= SHOWN or not one.ok:
            out.print(
                f"{one.status} {printable(one.body)}  {one.ms:.0f} ms", markup=False, soft_wrap=True
            )
    if count > 1:
        answers = Counter(f"{s.status}" for s in sent)
        middle = sorted(s.ms for s in sent)[len(sent) // 2]
        told = ", ".join(f"{n} × {status}" for status, n in answers.items())  # noqa: RUF001
        out.print(f"{count} sent: {told}; median {middle:.1f} ms", markup=False)
    return sent
