"""Handlers: what they do, how they fare, and whether they may run."""

from starlette.responses import Response

from gateway.api.operations.pauses import PAUSE, PAUSES, RESUME
from gateway.api.operations.status import STATUS
from gateway.console.visit import PREFIX, Visit, back_to
from gateway.notation.quantities import format_count


async def show_handlers(visit: Visit) -> Response:
    """All that the project has, and those of which only the ledger still knows."""
    status = await visit.ask(STATUS)
    known = {(state["route"], state["handler"]): state for state in status["handlers"]}
    subscribed = {s.key: s for s in visit.office.project.registry.subscriptions}
    pauses = await visit.ask(PAUSES)
    return visit.page(
        "handlers.html",
        title="Handlers",
        now=status["at"],
        places=sorted(known.keys() | subscribed.keys()),
        known=known,
        subscribed=subscribed,
        pauses={(pause["route"], pause["handler"]): pause for pause in pauses},
        routes=visit.office.project.config.routes,
    )


async def pause_handler(visit: Visit) -> Response:
    """One handler, or all of a route."""
    form, query = dict(await visit.form()), visit.query
    route, handler = query.get("route"), query.get("handler")
    paused = await visit.ask(PAUSE, route=route, handler=handler, reason=form.get("reason"))
    still = format_count(paused["running"], "run ends by itself", "runs end by themselves")
    notice = f"{handler or route} is paused; {still}."
    return back_to(f"{PREFIX}/handlers", notice)


async def resume_handler(visit: Visit) -> Response:
    """The end of a pause."""
    route, handler = visit.query.get("route"), visit.query.get("handler")
    resumed = await visit.ask(RESUME, route=route, handler=handler)
    waiting = format_count(resumed["waiting"], "delivery waits", "deliveries wait")
    notice = f"{handler or route} runs again; {waiting}."
    return back_to(f"{PREFIX}/handlers", notice)
