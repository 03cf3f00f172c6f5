"""Handlers: their state and statistics, pause and resume."""

from starlette.responses import Response

from gateway.api.operations.health import STATUS
from gateway.api.operations.pauses import PAUSE, PAUSES, RESUME
from gateway.base.units import format_count
from gateway.console.request import PREFIX, ConsoleRequest, back_to


async def show_handlers(visit: ConsoleRequest) -> Response:
    """Show the handlers of the project, and handlers that only the ledger still has."""
    status = await visit.ask(STATUS)
    known = {(state.route, state.handler): state for state in status.handlers}
    subscribed = {s.key: s for s in visit.project.registry.subscriptions}
    pauses = await visit.ask(PAUSES)
    return visit.page(
        "handlers.html",
        title="Handlers",
        now=status.at,
        places=sorted(known.keys() | subscribed.keys()),
        known=known,
        subscribed=subscribed,
        pauses={(pause["route"], pause["handler"]): pause for pause in pauses},
        routes=visit.project.config.routes,
    )


async def pause_handler(visit: ConsoleRequest) -> Response:
    """Pause one handler, or all handlers of a route."""
    form, query = dict(await visit.form()), visit.query
    route, handler = query.get("route"), query.get("handler")
    paused = await visit.ask(PAUSE, route=route, handler=handler, reason=form.get("reason"))
    still = format_count(paused["running"], "run ends by itself", "runs end by themselves")
    notice = f"{handler or route} is paused; {still}."
    return back_to(f"{PREFIX}/handlers", notice)


async def resume_handler(visit: ConsoleRequest) -> Response:
    """Resume a handler or a route."""
    route, handler = visit.query.get("route"), visit.query.get("handler")
    resumed = await visit.ask(RESUME, route=route, handler=handler)
    waiting = format_count(resumed["waiting"], "delivery waits", "deliveries wait")
    notice = f"{handler or route} runs again; {waiting}."
    return back_to(f"{PREFIX}/handlers", notice)
