"""Routes: the URL for the sender's settings, the last event, and a test button."""

from typing import Final

import orjson
from starlette.responses import Response

from gateway.api.operations.health import STATUS
from gateway.base.errors import CommandFailed, NotFound
from gateway.config.registry import Registry
from gateway.config.routes import Route
from gateway.config.settings import Settings
from gateway.console.pages.events import event_path
from gateway.console.request import PREFIX, ConsoleRequest, back_to
from gateway.ledger.connection import QUERIES
from gateway.operations.send import Sent, make_sender
from gateway.providers.samples import sample_types

ANY_ADDRESS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 (listening addresses)


async def show_routes(visit: ConsoleRequest) -> Response:
    """Show all routes, including the queues."""
    status = await visit.ask(STATUS)
    project = visit.project
    handlers: dict[str, list[str]] = {}
    for subscription in project.registry.subscriptions:
        handlers.setdefault(subscription.route, []).append(subscription.handler)
    return visit.page(
        "routes.html",
        title="Routes",
        now=status.at,
        routes=project.config.routes,
        states={state.route: state for state in status.routes},
        handlers=handlers,
        types={
            route.name: sendable_types(route, project.registry) for route in project.config.doors
        },
    )


def sendable_types(route: Route, registry: Registry) -> list[str]:
    """Return the types that can be sent.

    Types with a handler come first, because they show the most.
    """
    try:
        types = sample_types(route.provider.name)
    except ValueError:
        return []
    return sorted(
        types, key=lambda t: (not route.wants_type(t), not registry.for_event(route.name, t))
    )


async def send_test(visit: ConsoleRequest) -> Response:
    """Send a signed test event over HTTP to this gateway, through the same path as a real one."""
    name, form = visit.path("route"), dict(await visit.form())
    if name not in {route.name for route in visit.project.config.doors}:
        raise NotFound(f"there is no route {name!r}")
    settings = visit.office.settings
    type = form.get("type", "")
    sender = make_sender(settings, name, type, body=None, url=_here(settings))
    route = (await visit.office.read_names()).routes.identity(name)
    # Write the audit entry before sending: handlers process the test event like a real one.
    await visit.office.ledger.execute(QUERIES["note_test_event"], visit.office.actor, route, type)
    async for sent in sender.send(1):
        return _journey(name, sent)
    raise CommandFailed("nothing was sent")


def _journey(route: str, sent: Sent) -> Response:
    """Redirect to the event's page, which shows its deliveries."""
    notice = f"Sent, and answered {sent.status} after {sent.ms:.0f} ms."
    if not sent.ok:
        return back_to(f"{PREFIX}/routes", f"{notice} {sent.body[:200]}")
    try:
        answer = orjson.loads(sent.body)
        event_id, is_kept = str(answer["event_id"]), answer["status"] != "ignored"
    except (ValueError, KeyError, TypeError):  # the provider requires another response body
        return back_to(f"{PREFIX}/events?route={route}", notice)
    if not is_kept:
        unwanted = "It was ignored: the route's `types` or `livemode` do not want it."
        return back_to(f"{PREFIX}/routes", f"{notice} {unwanted}")
    return back_to(event_path(route, event_id), notice)


def _here(settings: Settings) -> str:
    """Return the base URL of this process, from the same machine."""
    host = "127.0.0.1" if settings.host in ANY_ADDRESS else settings.host
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
