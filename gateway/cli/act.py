"""`replay` and `discard`: changing what stands in the ledger."""

import asyncio
import getpass
import os
from typing import Annotated

import typer

from gateway.cli.output import console
from gateway.errors import CommandFailed
from gateway.operate.orders import Results, discard_all, replay_all
from gateway.settings import discover, load_settings

DeliveryIds = Annotated[
    list[int],
    typer.Argument(min=1, max=2**63 - 1, help="Delivery ids, as `gateway dead` shows them."),
]
Reason = Annotated[str | None, typer.Option("--reason", help="Why, for the audit log.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(replay)
    app.command()(discard)


def replay(delivery_ids: DeliveryIds, reason: Reason = None) -> None:
    """Run deliveries again, now, with a fresh round of attempts.

    Works on dead, done, discarded and waiting deliveries. Replaying one that is done is an order
    to do it again: its writes happen again. Leaves an audit row.

    Example: [bold]gateway replay 42 --reason "the mail server is back"[/bold]
    """
    settings = discover(load_settings())
    results = asyncio.run(replay_all(settings, delivery_ids, actor=_who(), reason=reason))
    _tell(results, "replayed")


def discard(delivery_ids: DeliveryIds, reason: Reason = None) -> None:
    """Give deliveries up: they will not run, unless someone replays them.

    Works on dead and waiting deliveries. Leaves an audit row.

    Example: [bold]gateway discard 42 --reason "a test order"[/bold]
    """
    settings = discover(load_settings())
    results = asyncio.run(discard_all(settings, delivery_ids, actor=_who(), reason=reason))
    _tell(results, "discarded")


def _tell(results: Results, done: str) -> None:
    for delivery_id, refusal in results.items():
        if refusal is None:
            console().print(f"delivery {delivery_id}: {done}")
    refusals = [str(refusal) for refusal in results.values() if refusal is not None]
    if refusals:
        raise CommandFailed("\n".join(refusals))


def _who() -> str:
    """The person for the audit log; a container's arbitrary user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
