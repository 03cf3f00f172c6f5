"""`replay` and `discard`: changing what stands in the ledger."""

from typing import Annotated, Any

import typer

from gateway.api.desk import Desk
from gateway.api.operation import Operation
from gateway.api.operations.events import DISCARD, REPLAY, OrderParams
from gateway.cli.asking import Reason, Url, at_desk, given
from gateway.cli.output import console
from gateway.errors import CommandFailed, TransitionRefused

DeliveryIds = Annotated[
    list[int],
    typer.Argument(min=1, max=2**63 - 1, help="Delivery ids, as `gateway dead` shows them."),
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(replay)
    app.command()(discard)


def replay(delivery_ids: DeliveryIds, reason: Reason = None, url: Url = None) -> None:
    """Run deliveries again, now, with a fresh round of attempts.

    Works on dead, done, discarded and waiting deliveries. Replaying one that is done is an order
    to do it again: its writes happen again. Leaves an audit row.

    Example: [bold]gateway replay 42 --reason "the mail server is back"[/bold]
    """
    _order_each(REPLAY, delivery_ids, reason, url, done="replayed")


def discard(delivery_ids: DeliveryIds, reason: Reason = None, url: Url = None) -> None:
    """Give deliveries up: they will not run, unless someone replays them.

    Works on dead and waiting deliveries. Leaves an audit row.

    Example: [bold]gateway discard 42 --reason "a test order"[/bold]
    """
    _order_each(DISCARD, delivery_ids, reason, url, done="discarded")


def _order_each(
    operation: Operation[OrderParams, Any],
    delivery_ids: list[int],
    reason: str | None,
    url: str | None,
    *,
    done: str,
) -> None:
    """A refusal of one does not keep back the others."""

    async def order(desk: Desk) -> list[str]:
        refusals = []
        for delivery_id in dict.fromkeys(delivery_ids):
            params = OrderParams(delivery_id=delivery_id, **given(reason=reason))
            try:
                await desk.ask(operation, params)
            except (CommandFailed, TransitionRefused) as refusal:
                refusals.append(str(refusal))
            else:
                console().print(f"delivery {delivery_id}: {done}")
        return refusals

    if refusals := at_desk(url, order):
        raise CommandFailed("\n".join(refusals))
