"""Routes: what to paste into the sender's settings, whether anything comes, and a way to try it."""

from typing import Final

import orjson
from starlette.responses import Response

from gateway.api.operations.status import STATUS
from gateway.console.pages.events import event_path
from gateway.console.visit import PREFIX, Visit, back_to
from gateway.errors import CommandFailed, NotFound
from gateway.ledger.queries import QUERIES
from gateway.operate.send import Sent, make_sender
from gateway.registry import Registry
from gateway.routes import Route
from gateway.samples import sample_types
from gateway.settings import Settings

ANY_ADDRESS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 (what is listened on)


async def show_routes(visit: Visit) -> Response:
    """All of them, the queues too."""
    status = await visit.ask(STATUS)
    project = visit.office.project
    handlers: dict[str, list[str]] = {}
    for subscription in project.registry.subscriptions:
        handlers.setdefault(subscription.route, []).append(subscription.handler)
    return visit.page(
        "routes.html",
        title="Routes",
        now=status["at"],
        routes=project.config.routes,
        states={state["route"]: state for state in status["routes"]},
        handlers=handlers,
        types={
            route.name: sendable_types(route, project.registry) for route in project.config.doors
        },
    )


def sendable_types(route: Route, registry: Registry) -> list[str]:
    """Which can be sent: first those that a handler takes, for a test is to show it at work."""
    try:
        types = sample_types(route.provider.name)
    except ValueError:
        return []
    return sorted(
        types, key=lambda t: (not route.wants_type(t), not registry.for_event(route.name, t))
    )


async def send_test(visit: Visit) -> Response:
    """Signed as its sender signs, over HTTP, to this very gateway: the whole way."""
    name, form = visit.path("route"), dict(await visit.form())
    if name not in {route.name for route in visit.office.project.config.doors}:
        raise NotFound(f"there is no route {name!r}")
    settings = visit.office.settings
    type = form.get("type", "")
    sender = make_sender(settings, name, type, body=None, url=_here(settings))
    # Before it is sent: handlers take it for a real one.
    await visit.office.ledger.execute(QUERIES["note_test_event"], visit.office.actor, name, type)
    async for sent in sender.send(1):
        return _journey(name, sent)
    raise CommandFailed("nothing was sent")


def _journey(route: str, sent: Sent) -> Response:
    """To the event, where what becomes of it is seen."""
    notice = f"Sent, and answered {sent.status} after {sent.ms:.0f} ms."
    if not sent.ok:
        return back_to(f"{PREFIX}/routes", f"{notice} {sent.body[:200]}")
    try:
        answer = orjson.loads(sent.body)
        event_id, is_kept = str(answer["event_id"]), answer["status"] != "ignored"
    except (ValueError, KeyError, TypeError):  # a sender that wants to see something else
        return back_to(f"{PREFIX}/events?route={route}", notice)
    if not is_kept:
        unwanted = "It was ignored: the route's `types` or `livemode` do not want it."
        return back_to(f"{PREFIX}/routes", f"{notice} {unwanted}")
    return back_to(event_path(route, event_id), notice)


def _here(settings: Settings) -> str:
    """Where this process listens, from the same machine."""
    host = "127.0.0.1" if settings.host in ANY_ADDRESS else settings.host
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
