"""Bulk operations: their progress, stop and resume."""

from typing import Final

from starlette.responses import Response

from gateway.api.operations.bulk import ORDERS, RESUME_ORDER, SHOW_ORDER, STOP_ORDER
from gateway.console.request import PREFIX, ConsoleRequest, back_to

PER_PAGE: Final = 50


async def show_orders(visit: ConsoleRequest) -> Response:
    """Show the bulk operations, newest first."""
    page = await visit.ask(ORDERS, after=visit.query.get("after"), limit=PER_PAGE)
    return visit.page("bulk.html", title="Bulk orders", rows=page["items"], next=page["next"])


async def show_order(visit: ConsoleRequest) -> Response:
    """Show one bulk operation with its progress bar."""
    order = await visit.ask(SHOW_ORDER, order_id=visit.path("order_id"))
    return visit.page("bulk_operation.html", title=f"Order {order['order_id']}", order=order)


async def stop_order(visit: ConsoleRequest) -> Response:
    """Stop a bulk operation after its current step. Completed steps are not undone."""
    id = visit.path("order_id")
    form = dict(await visit.form())
    order = await visit.ask(STOP_ORDER, order_id=id, reason=form.get("reason"))
    is_done = order["status"] == "done"
    notice = "It was done already." if is_done else "It stops after the step that it is at."
    return back_to(f"{PREFIX}/orders/{id}", notice)


async def resume_order(visit: ConsoleRequest) -> Response:
    """Resume a bulk operation at its cursor."""
    id = visit.path("order_id")
    form = dict(await visit.form())
    await visit.ask(RESUME_ORDER, order_id=id, reason=form.get("reason"))
    return back_to(f"{PREFIX}/orders/{id}", "It goes on.")
