"""The commands `send` and `publish`: signed samples and jobs for a running gateway."""

import asyncio
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from gateway.base.errors import CommandFailed
from gateway.base.problems import Unexpected
from gateway.base.units import parse_duration
from gateway.cli.output import console, print_json, printable
from gateway.config.development import read_up
from gateway.config.settings import Settings, discover, load_settings
from gateway.dev.known_types import doubt
from gateway.operations.send import Sender, Sent, make_sender, publish_job

SHOWN = 10


def register(app: typer.Typer) -> None:
    app.command()(send)
    app.command()(publish)


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


def publish(
    queue: Annotated[str, typer.Argument(help="A queue of routes.yaml that has tokens.")],
    payload: Annotated[str, typer.Option("--payload", help="A file with JSON; - is the input.")],
    key: Annotated[
        str | None, typer.Option("--key", help="The same key is the same job; default: a new one.")
    ] = None,
    type: Annotated[
        str | None, typer.Option("--type", help="The event type; default: the queue's name.")
    ] = None,
    delay: Annotated[str, typer.Option("--delay", help="Not to be run sooner: 30s, 2h.")] = "0s",
    url: Annotated[
        str | None, typer.Option("--url", help="Where the gateway is; default: the running `up`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Publish a job with the queue's own token, and wait until it is durable.

    Examples: [bold]gateway publish orders --payload order.json --key order:9482:charge[/bold],
    [bold]echo '{"order": 1}' | gateway publish orders --payload - --delay 30s[/bold]
    """
    settings = discover(load_settings())
    published = asyncio.run(
        publish_job(
            settings,
            queue,
            _read(payload),
            url=url or running(settings),
            key=key,
            type=type,
            delay=_duration(delay),
        )
    )
    if as_json:
        status = "accepted" if published.is_new else "duplicate"
        print_json({"id": published.id, "status": status})
    else:
        told = "new" if published.is_new else "published before"
        console().print(f"{printable(published.id)}: {told}", markup=False, soft_wrap=True)


def _read(payload: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if payload == "-" else Path(payload).read_bytes()
    except OSError as error:
        raise CommandFailed(f"{payload}: cannot be read: {error.strerror}") from error


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except Unexpected as error:
        raise typer.BadParameter(
            f"found {error.found}; expected {error.expected}", param_hint="--delay"
        ) from None
