"""Reconcile: runs that compare the provider's list of sent events with the ledger."""

from typing import Final

from starlette.responses import Response

from gateway.api.operations.reconcile import RECONCILE, RECONCILIATION, RECONCILIATIONS
from gateway.console.request import PREFIX, ConsoleRequest, back_to
from gateway.operations.reconcile.clients import askable_routes

PER_PAGE: Final = 50


async def show_reconcile(visit: ConsoleRequest) -> Response:
    """Show the last runs and a form to start one."""
    query = visit.query
    page = await visit.ask(
        RECONCILIATIONS, route=query.get("route"), after=query.get("after"), limit=PER_PAGE
    )
    return visit.page(
        "reconcile.html",
        title="Reconcile",
        rows=page["items"],
        next=page["next"],
        askable=askable_routes(visit.project.config),
    )


async def show_reconciliation(visit: ConsoleRequest) -> Response:
    """Show one run and the events that it could not recover."""
    run = await visit.ask(RECONCILIATION, id=visit.path("id"))
    return visit.page("reconciliation.html", title=f"Reconcile {run['route']}", run=run)


async def run_reconcile(visit: ConsoleRequest) -> Response:
    """Start a run. It continues after the response."""
    form = dict(await visit.form())
    run = await visit.ask(
        RECONCILE,
        route=form.get("route"),
        since=form.get("since"),
        dry_run="dry_run" in form or None,
        resume="resume" in form or None,
    )
    return back_to(f"{PREFIX}/reconcile/{run['id']}")
