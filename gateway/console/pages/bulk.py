"""Bulk operations: their progress, stop and resume."""

from typing import Final

from starlette.responses import Response

from gateway.api.operations.bulk import LIST_BULK, RESUME_BULK, SHOW_BULK, STOP_BULK
from gateway.console.request import PREFIX, ConsoleRequest, back_to

PER_PAGE: Final = 50


async def list_bulk(visit: ConsoleRequest) -> Response:
    """Show the bulk operations, newest first."""
    page = await visit.ask(LIST_BULK, after=visit.query.get("after"), limit=PER_PAGE)
    return visit.page("bulk.html", title="Bulk operations", rows=page["items"], next=page["next"])


async def show_bulk(visit: ConsoleRequest) -> Response:
    """Show one bulk operation with its progress bar."""
    bulk = await visit.ask(SHOW_BULK, bulk_id=visit.path("bulk_id"))
    title = f"Bulk operation {bulk['bulk_id']}"
    return visit.page("bulk_operation.html", title=title, bulk=bulk)


async def stop_bulk(visit: ConsoleRequest) -> Response:
    """Stop a bulk operation after its current step. Completed steps are not undone."""
    id = visit.path("bulk_id")
    form = dict(await visit.form())
    bulk = await visit.ask(STOP_BULK, bulk_id=id, reason=form.get("reason"))
    is_done = bulk["status"] == "done"
    notice = "It was done already." if is_done else "It stops after its current step."
    return back_to(f"{PREFIX}/bulk/{id}", notice)


async def resume_bulk(visit: ConsoleRequest) -> Response:
    """Resume a bulk operation at its cursor."""
    id = visit.path("bulk_id")
    form = dict(await visit.form())
    await visit.ask(RESUME_BULK, bulk_id=id, reason=form.get("reason"))
    return back_to(f"{PREFIX}/bulk/{id}", "It is resumed.")
