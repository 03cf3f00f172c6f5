"""Events: the list, and one event with its history."""

import re
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from markupsafe import Markup
from starlette.responses import Response

from gateway.api.operations.events import DISCARD, EVENTS, REPLAY, REVEAL, SHOW
from gateway.api.shapes import DeliveryDetail, EventDetail
from gateway.base.errors import CommandFailed, NotFound
from gateway.base.model import Status, payload_bytes
from gateway.base.units import format_duration
from gateway.config.routes import Route
from gateway.console.event_view import as_curl, draw_tree
from gateway.console.request import PREFIX, ConsoleRequest, back_to
from gateway.operations.bulk import effects_report
from gateway.operations.record import record
from gateway.providers.samples import dump_recorded

FILTERS: Final = ("route", "type", "status", "handler", "account", "object", "since", "until")
PER_PAGE: Final = 50
LONGEST_SHOWN: Final = 256 * 1024
"""Maximum number of characters of a body on a page. `gateway show --body` prints all of it."""

LARGEST_PARSED: Final = 1024 * 1024
"""Maximum size of a body that is parsed here. Senders wait meanwhile, as it is the same process."""

LONGEST_NAME: Final = 100


async def show_events(visit: ConsoleRequest) -> Response:
    """Show the newest events first. A search for an id leads directly to its event."""
    query = visit.query
    if "q" in query:
        return await _search(visit, query["q"].strip())
    filters = {name: query[name] for name in FILTERS if name in query}
    page = await visit.ask(EVENTS, **filters, after=query.get("after"), limit=PER_PAGE)
    return visit.page(
        "events.html",
        title="Events",
        rows=page["items"],
        next=page["next"],
        filters=filters,
        routes=visit.project.config.routes,
        statuses=list(Status),
        per_page=PER_PAGE,
    )


async def _search(visit: ConsoleRequest, text: str) -> Response:
    try:
        found = await visit.ask(SHOW, id=text)
    except NotFound:
        about = await visit.ask(EVENTS, object=text, limit=1)
        if about["items"]:
            return back_to(f"{PREFIX}/events?{urlencode({'object': text})}")
        return visit.page("not_found.html", code=404, title="Not found", text=text)
    if len(found) == 1:
        return back_to(event_path(found[0]["route"], found[0]["event_id"]))
    return visit.page("several.html", title="Events", found=found, text=text)


def event_path(route: str, event_id: str) -> str:
    """Return the path of an event's page.

    The id is in the query, because it may contain slashes.
    """
    return f"{PREFIX}/event?{urlencode({'route': route, 'id': event_id})}"


async def _event(visit: ConsoleRequest) -> EventDetail:
    query = visit.query
    found = await visit.ask(SHOW, id=query.get("id"), route=query.get("route"))
    return found[0]


async def show_event(visit: ConsoleRequest) -> Response:
    return _event_page(visit, await _event(visit))


async def reveal_event(visit: ConsoleRequest) -> Response:
    """Show the content of one event of an encrypted route, and record it in the audit log.

    It takes a form, so that no link and no browser history can trigger it.
    """
    form, query = dict(await visit.form()), visit.query
    found = await visit.ask(
        REVEAL, id=query.get("id"), route=query.get("route"), reason=form.get("reason")
    )
    return _event_page(visit, found[0], is_revealed=True)


def _event_page(
    visit: ConsoleRequest, event: EventDetail, *, is_revealed: bool = False
) -> Response:
    body = event["body"]
    tree, instead = _tree(event)
    route = _route(visit, event)
    return visit.page(
        "event.html",
        title=event["event_id"],
        event=event,
        scheme=_scheme(route, event),
        timelines=[_timeline(delivery) for delivery in event["deliveries"]],
        tree=tree,
        instead=instead,
        raw=None if body is None else body[:LONGEST_SHOWN],
        is_cut=body is not None and len(body) > LONGEST_SHOWN,
        curl=_curl(visit, route, event),
        good_for=_good_for(route, event),
        here=event_path(event["route"], event["event_id"]),
        is_revealed=is_revealed,
    )


def _route(visit: ConsoleRequest, event: EventDetail) -> Route | None:
    """Return the route of an event, or None if it is no longer configured."""
    doors = visit.project.config.doors
    return next((route for route in doors if route.name == event["route"]), None)


def _scheme(route: Route | None, event: EventDetail) -> str | None:
    """Describe the signature scheme, if the route still has the same provider."""
    if route is None or route.provider.name != event["provider"]:
        return None
    return None if route.provider.facts is None else route.provider.facts.scheme


def _good_for(route: Route | None, event: EventDetail) -> str | None:
    """Return how long the signed timestamp is accepted, or None if no time was signed."""
    if route is None or route.tolerance is None or event["clock_s"] is None:
        return None
    return format_duration(route.tolerance)


def _timeline(delivery: DeliveryDetail) -> list[tuple[str, Any]]:
    """Return attempts, external effects and audit entries in chronological order."""
    happened = [
        *(("run", attempt["started_at"], attempt) for attempt in delivery["attempt_log"]),
        *(("effect", effect["begun_at"], effect) for effect in delivery["effects"]),
        *(("audit", entry["at"], entry) for entry in delivery["audit"]),
    ]
    happened.sort(key=lambda item: item[1])
    return [(kind, what) for kind, _, what in happened]


async def save_event(visit: ConsoleRequest) -> Response:
    """Return a file for tests and rehearsals, in the format of `gateway show --save`."""
    event: dict[str, Any] = {**(await _event(visit))}
    if event["body_base64"] is not None:
        raise CommandFailed("the payload is not JSON: save its bytes with `gateway show --body`")
    event["body"] = None if event["body"] is None else event["body"].encode()
    recorded, _ = record(event)
    name = re.sub("[^A-Za-z0-9._-]", "_", recorded.type)[:LONGEST_NAME]
    disposition = f'attachment; filename="{name}.json"'
    headers = {"content-disposition": disposition}
    return Response(dump_recorded(recorded), media_type="application/json", headers=headers)


def _tree(event: EventDetail) -> tuple[Markup | None, str]:
    """Return the body as a tree, or None and the reason."""
    if event["body"] is None or event["body_base64"] is not None:
        return None, "These bytes are no text."
    if len(event["body"]) > LARGEST_PARSED:
        return None, "Too large to be shown as a tree."
    try:
        document = orjson.loads(payload_bytes(event["headers"] or {}, event["body"].encode()))
    except ValueError:
        return None, "This is no JSON."
    return draw_tree(document), "Too large to be shown as a tree."


def _curl(visit: ConsoleRequest, route: Route | None, event: EventDetail) -> str | None:
    """Return the original request as a curl command.

    A request with a signed timestamp is rejected once the timestamp is older than the tolerance.
    """
    if event["body"] is None or event["body_base64"] is not None or route is None:
        return None
    if len(event["body"]) > LONGEST_SHOWN or event["redacted"] is not None:
        return None
    settings = visit.office.settings
    base = settings.public_url or f"http://{settings.host}:{settings.port}"
    return as_curl(base + route.path, event["headers"] or {}, event["body"])


async def replay_delivery(visit: ConsoleRequest) -> Response:
    """Replay a delivery, from its form on the event's page."""
    form = dict(await visit.form())
    id = visit.path("delivery_id")
    effects = form.get("effects", "keep")
    done = await visit.ask(REPLAY, delivery_id=id, effects=effects, reason=form.get("reason"))
    report = effects_report(effects, done["effects_kept"], done["effects_unknown"])
    return back_to(visit.came_from, f"Delivery {id} runs again{report}.")


async def discard_delivery(visit: ConsoleRequest) -> Response:
    """Discard a delivery, from its form on the event's page."""
    form = dict(await visit.form())
    id = visit.path("delivery_id")
    await visit.ask(DISCARD, delivery_id=id, reason=form.get("reason"))
    return back_to(visit.came_from, f"Delivery {id} is discarded.")
