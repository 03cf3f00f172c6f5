"""Orders for everything that matched: how far they have come, to be stopped and gone on with."""

from typing import Final

from starlette.responses import Response

from gateway.api.operations.orders import ORDERS, RESUME_ORDER, SHOW_ORDER, STOP_ORDER
from gateway.console.visit import PREFIX, Visit, back_to

PER_PAGE: Final = 50


async def show_orders(visit: Visit) -> Response:
    """The newest first."""
    page = await visit.ask(ORDERS, after=visit.query.get("after"), limit=PER_PAGE)
    return visit.page("orders.html", title="Bulk orders", rows=page["items"], next=page["next"])


async def show_order(visit: Visit) -> Response:
    """One, with its bar."""
    order = await visit.ask(SHOW_ORDER, order_id=visit.path("order_id"))
    return visit.page("order.html", title=f"Order {order['order_id']}", order=order)


async def stop_order(visit: Visit) -> Response:
    """After the step that it is at; what it did stays done."""
    id = visit.path("order_id")
    form = dict(await visit.form())
    order = await visit.ask(STOP_ORDER, order_id=id, reason=form.get("reason"))
    is_done = order["status"] == "done"
    notice = "It was done already." if is_done else "It stops after the step that it is at."
    return back_to(f"{PREFIX}/orders/{id}", notice)


async def resume_order(visit: Visit) -> Response:
    """From where it came to."""
    id = visit.path("order_id")
    form = dict(await visit.form())
    await visit.ask(RESUME_ORDER, order_id=id, reason=form.get("reason"))
    return back_to(f"{PREFIX}/orders/{id}", "It goes on.")
