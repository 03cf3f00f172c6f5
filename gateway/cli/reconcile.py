"""The command `reconcile`: find and recover events that never arrived."""

import asyncio
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Final

import typer

from gateway.api.operation_client import LocalOperationClient, OperationClient
from gateway.api.operations.reconcile import (
    RECONCILE,
    RECONCILIATION,
    ReconcileParams,
    Reconciliation,
    ReconciliationDetail,
    ReconciliationParams,
    means_of,
)
from gateway.base.errors import CommandFailed, ConfigInvalid
from gateway.cli.asking import Since, Url, at_desk, given
from gateway.cli.output import complain, console, print_json, print_rows, printable
from gateway.cli.progress import progress
from gateway.config.routes import load_config
from gateway.config.settings import discover, load_settings
from gateway.operations.reconcile.clients import askable_routes
from gateway.operations.reconcile.runs import carry_out
from gateway.telemetry.logs import configure_logs

POLL_S: Final = 0.3
SHOWN: Final = 10


def register(app: typer.Typer) -> None:
    app.command()(reconcile)


def reconcile(
    route: Annotated[
        str | None, typer.Argument(help="The route; without it, each that can be reconciled.")
    ] = None,
    since: Since = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what is missing.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the route's last run.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one array.")] = False,
    url: Url = None,
) -> None:
    """Ask a provider for the events that it sent, and recover those that never arrived.

    Stripe's events are claimed from its API; GitHub is asked to deliver again. Both use the
    ordinary claim, so an event that arrives meanwhile is claimed only once. Without --since it
    continues from the last scheduled run.

    Examples: [bold]gateway reconcile stripe --since 3d[/bold],
    [bold]gateway reconcile --since 6h --dry-run[/bold],
    [bold]gateway reconcile github --resume[/bold]
    """
    if resume and (since or dry_run):
        raise typer.BadParameter(
            "--resume goes on as it was begun: leave out --since and --dry-run"
        )
    configure_logs("auto", "error")
    asked = given(since=since, dry_run=dry_run or None, resume=resume or None)
    if route is None and url is not None:
        raise typer.BadParameter("say which route: only the gateway at --url knows its routes")
    routes = [route] if route is not None else _routes()
    reports, is_refused = [], False
    for name in routes:
        try:
            work = partial(_run, params=ReconcileParams(route=name, **asked))
            reports.append(at_desk(url, work))
        except (CommandFailed, ConfigInvalid) as error:  # the other routes continue
            if len(routes) == 1:
                raise
            complain(str(error))
            is_refused = True
    if as_json:
        print_json(reports)
    else:
        for report in reports:
            _print(report)
    if is_refused or any(_has_failed(report) for report in reports):
        raise typer.Exit(1)


def _routes() -> list[str]:
    settings = discover(load_settings())
    routes = askable_routes(load_config(settings.config))
    if not routes:
        raise CommandFailed(
            f"no route in {settings.config} can be reconciled: Stripe's needs an api_key, "
            "GitHub's a `reconcile` (docs/reconcile.md)"
        )
    return routes


async def _run(desk: OperationClient, params: ReconcileParams) -> ReconciliationDetail:
    """Run a reconciliation here or remotely.

    Its row in the ledger shows the progress in both cases.
    """
    begun = await desk.ask(RECONCILE, params)
    here = None
    if isinstance(desk, LocalOperationClient):
        here = asyncio.create_task(carry_out(means_of(desk.office), begun["id"]))
    try:
        found = await _watch(desk, begun, here)
        if here is not None:
            await here
            found = await desk.ask(RECONCILIATION, ReconciliationParams(id=begun["id"]))
    finally:
        if here is not None and not here.done():
            here.cancel()
            await asyncio.wait({here})
    return found


async def _watch(
    desk: OperationClient, begun: Reconciliation, here: "asyncio.Task[dict[str, object]] | None"
) -> ReconciliationDetail:
    params = ReconciliationParams(id=begun["id"])
    if begun["note"]:
        typer.echo(f"{begun['route']}: --since is {begun['note']}", err=True)
    with progress(f"listing {begun['route']}", None, done=begun["listed"]) as show:
        while True:
            found = await desk.ask(RECONCILIATION, params)
            show(found["listed"])
            if found["status"] != "running" or found["phase"] != "listing":
                break
            if here is not None and here.done():
                return found
            await asyncio.sleep(POLL_S)
    recovering = progress(f"recovering {begun['route']}", found["missing"])
    with recovering if found["missing"] else nullcontext(lambda _: None) as show:
        while found["status"] == "running" and not (here is not None and here.done()):
            await asyncio.sleep(POLL_S)
            found = await desk.ask(RECONCILIATION, params)
            show(found["recovered"])
    return found


def _has_failed(report: ReconciliationDetail) -> bool:
    if report["status"] != "done":
        return True
    return not report["dry_run"] and bool(report["outstanding"] or report["unrecoverable"])


def _print(report: ReconciliationDetail) -> None:
    out = console()
    parts = [f"{report['listed']:,} listed", f"{report['missing']:,} missing"]
    if not report["dry_run"]:
        parts += [
            f"{report[name]:,} {name}" for name in ("recovered", "outstanding", "unrecoverable")
        ]
    since = f"{report['since']:%Y-%m-%d %H:%M} UTC"
    how = " (dry run)" if report["dry_run"] else ""
    line = f"{report['route']} since {since}{how}: {', '.join(parts)}"
    out.print(line, markup=False)
    if report["status"] != "done":
        told = printable(report["error"] or report["status"])
        again = (
            ""
            if report["dry_run"]
            else f"; go on with `gateway reconcile {report['route']} --resume`"
        )
        out.print(f"  {report['status']}: {told}{again}", style="red", markup=False)
    for reason in report["reasons"]:
        kind = "unrecoverable" if reason["status"] == "unrecoverable" else "outstanding"
        out.print(f"  {reason['count']:,} {kind}: {printable(reason['reason'])}", markup=False)
    if report["gaps"]:
        columns = ["event_id", "type", "occurred_at", "status", "asks", "recorded"]
        print_rows(columns, report["gaps"][:SHOWN], empty="")
