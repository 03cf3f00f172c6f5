"""The command `orders`: list and stop bulk operations."""

from typing import Annotated, Any

import typer

from gateway.api.operations.bulk import ORDERS, STOP_ORDER, StopBulkParams
from gateway.api.parameters import PageParams
from gateway.api.shapes import BulkRow
from gateway.cli.asking import AsJson, Limit, Reason, Url, ask, ask_pages, given, limit_of
from gateway.cli.output import console, print_json, print_rows, printable


def register(app: typer.Typer) -> None:
    app.command()(orders)


def orders(
    stop: Annotated[
        int | None,
        typer.Option(
            "--stop", metavar="ORDER", min=1, max=2**63 - 1, help="Stop this one, wherever it runs."
        ),
    ] = None,
    reason: Reason = None,
    limit: Limit = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """List bulk operations, newest first, with their progress.

    An idle one has no running process: resume it with [bold]gateway replay --resume ID[/bold].

    Examples: [bold]gateway orders[/bold], [bold]gateway orders --stop 7[/bold]
    """
    if stop is not None:
        order = ask(url, STOP_ORDER, StopBulkParams(order_id=stop, **given(reason=reason)))
        console().print(f"order {stop} is {order['status']}, at {_progress(order)}", markup=False)
        return
    rows = ask_pages(url, ORDERS, PageParams(), limit_of(limit, as_json))
    if as_json:
        print_json(rows)
        return
    columns = ["order_id", "began_at", "action", "filter", "status", "progress", "actor", "reason"]
    shown = [_shown(row) for row in rows]
    print_rows(columns, shown, empty="Nobody has ordered anything for all that matches yet.")


def _shown(order: BulkRow) -> dict[str, Any]:
    asked = " ".join(f"--{name} {printable(value)}" for name, value in order["filter"].items())
    status = "idle" if order["is_idle"] else order["status"]
    return {**order, "filter": asked or None, "status": status, "progress": _progress(order)}


def _progress(order: BulkRow) -> str:
    skipped = f", {order['skipped']:,} skipped" if order["skipped"] else ""
    return f"{order['moved']:,} of {order['total']:,}{skipped}"
