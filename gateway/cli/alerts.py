"""The command `alerts`: firing alerts and a test of their destinations."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from gateway.api.operations.alerts import ALERTS, TEST_ALERTS, NoParams
from gateway.cli.asking import AsJson, Url, ask
from gateway.cli.output import ago, print_json, print_rows
from gateway.ledger.alerts import AlertReceipt, AlertRow

Test = Annotated[
    bool, typer.Option("--test", help="Send a test message to everyone who is told, and say so.")
]


def register(app: typer.Typer) -> None:
    app.command()(alerts)


def alerts(test: Test = False, as_json: AsJson = False, url: Url = None) -> None:
    """List firing alerts: dead letters, backlogs, unknown effects; and who was notified.

    With [bold]--test[/bold] a test message goes to each destination of `routes.yaml`; exit 1 if one
    of them does not accept it.
    """
    if test:
        _test(as_json, url)
        return
    rows = ask(url, ALERTS, NoParams())
    if as_json:
        print_json(rows)
        return
    columns = ["raised_at", "kind", "route", "handler", "count", "since", "note", "told"]
    print_rows(columns, map(_row, rows), empty="Nothing needs attention.")


def _test(as_json: bool, url: str | None) -> None:
    tested = ask(url, TEST_ALERTS, NoParams())
    if as_json:
        print_json(tested)
    else:
        print_rows(["destination", "ok", "answer"], map(_tested, tested), empty="")
    if not all(row["ok"] for row in tested):
        raise typer.Exit(1)


def _tested(row: Any) -> dict[str, Any]:
    return {**row, "ok": "yes" if row["ok"] else "no"}


def _row(row: AlertRow) -> dict[str, Any]:
    count = f"{row.count:,}{'+' if row.count_capped else ''}"
    told = ", ".join(map(_told, row.told)) or "nobody"
    return {**asdict(row), "count": count, "note": _note(row), "told": told}


def _note(row: AlertRow) -> str | None:
    if row.paused is not None:
        why = f": {row.paused.reason}" if row.paused.reason else ""
        return f"paused by {row.paused.actor}{why}"
    return "no worker has this handler" if row.orphaned else row.error


def _told(receipt: AlertReceipt) -> str:
    if receipt.status == "sent" and receipt.sent_at is not None:
        return f"{receipt.destination} {ago(receipt.sent_at)}"
    failed = "given up" if receipt.status == "failed" else "to be sent"
    why = f", {receipt.error}" if receipt.error else ""
    return f"{receipt.destination} {failed}{why}"
