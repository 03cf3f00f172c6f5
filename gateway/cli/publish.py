"""The command `publish`: publish a job to a running gateway."""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from gateway.base.errors import CommandFailed
from gateway.base.problems import Unexpected
from gateway.base.units import parse_duration
from gateway.cli.output import console, print_json, printable
from gateway.cli.send import running
from gateway.config.settings import discover, load_settings
from gateway.operations.send import publish_job


def register(app: typer.Typer) -> None:
    app.command()(publish)


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
