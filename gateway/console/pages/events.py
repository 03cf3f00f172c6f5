"""Events: the list, and one of them with all that happened to it."""

import re
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from markupsafe import Markup
from starlette.responses import Response

from gateway.api.operations.events import DISCARD, EVENTS, REPLAY, REVEAL, SHOW
from gateway.api.shapes import DeliveryDetail, EventDetail
from gateway.console.curl import as_curl
from gateway.console.tree import draw_tree
from gateway.console.visit import PREFIX, Visit, back_to
from gateway.errors import CommandFailed, NotFound
from gateway.model import Status, payload_bytes
from gateway.notation.quantities import format_duration
from gateway.operate.bulk import effects_report
from gateway.operate.record import record
from gateway.routes import Route
from gateway.samples import dump_recorded

FILTERS: Final = ("route", "type", "status", "handler", "account", "object", "since", "until")
PER_PAGE: Final = 50
LONGEST_SHOWN: Final = 256 * 1024
"""Of a body, on a page: the rest can be had with `gateway show --body`."""

LARGEST_PARSED: Final = 1024 * 1024
"""The senders wait while a body is read as JSON: it is the same process."""

LONGEST_NAME: Final = 100


async def show_events(visit: Visit) -> Response:
    """The newest first; whoever knows an id gets to its event at once."""
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
        routes=visit.office.project.config.routes,
        statuses=list(Status),
        per_page=PER_PAGE,
    )


async def _search(visit: Visit, text: str) -> Response:
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
    """Ids are opaque, slashes and all: they stand in the query."""
    return f"{PREFIX}/event?{urlencode({'route': route, 'id': event_id})}"


async def _event(visit: Visit) -> EventDetail:
    query = visit.query
    found = await visit.ask(SHOW, id=query.get("id"), route=query.get("route"))
    return found[0]


async def show_event(visit: Visit) -> Response:
    """One event."""
    return _event_page(visit, await _event(visit))


async def reveal_event(visit: Visit) -> Response:
    """One event of an encrypted route with what is in it: asked for by a form, so that no link and
    no browser's history does it, and on record."""
    form, query = dict(await visit.form()), visit.query
    found = await visit.ask(
        REVEAL, id=query.get("id"), route=query.get("route"), reason=form.get("reason")
    )
    return _event_page(visit, found[0], is_revealed=True)


def _event_page(visit: Visit, event: EventDetail, *, is_revealed: bool = False) -> Response:
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


def _route(visit: Visit, event: EventDetail) -> Route | None:
    """None where the file has it no more."""
    doors = visit.office.project.config.doors
    return next((route for route in doors if route.name == event["route"]), None)


def _scheme(route: Route | None, event: EventDetail) -> str | None:
    """How its sender signs, as far as the route is still the same."""
    if route is None or route.provider.name != event["provider"]:
        return None
    return None if route.provider.facts is None else route.provider.facts.scheme


def _good_for(route: Route | None, event: EventDetail) -> str | None:
    """How long the time that was signed is taken; None where none was."""
    if route is None or route.tolerance is None or event["clock_s"] is None:
        return None
    return format_duration(route.tolerance)


def _timeline(delivery: DeliveryDetail) -> list[tuple[str, Any]]:
    """Runs, outside effects and what people did, in the order in which it happened."""
    happened = [
        *(("run", attempt["started_at"], attempt) for attempt in delivery["attempt_log"]),
        *(("effect", effect["begun_at"], effect) for effect in delivery["effects"]),
        *(("audit", entry["at"], entry) for entry in delivery["audit"]),
    ]
    happened.sort(key=lambda item: item[1])
    return [(kind, what) for kind, _, what in happened]


async def save_event(visit: Visit) -> Response:
    """A file for tests and rehearsals, as `gateway show --save` writes it."""
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
    """The body as a tree, or else why there is none."""
    if event["body"] is None or event["body_base64"] is not None:
        return None, "These bytes are no text."
    if len(event["body"]) > LARGEST_PARSED:
        return None, "Too large to be shown as a tree."
    try:
        document = orjson.loads(payload_bytes(event["headers"] or {}, event["body"].encode()))
    except ValueError:
        return None, "This is no JSON."
    return draw_tree(document), "Too large to be shown as a tree."


def _curl(visit: Visit, route: Route | None, event: EventDetail) -> str | None:
    """The request as it came, for a shell: what signs a time is refused once that is old."""
    if event["body"] is None or event["body_base64"] is not None or route is None:
        return None
    if len(event["body"]) > LONGEST_SHOWN or event["redacted"] is not None:
        return None
    settings = visit.office.settings
    base = settings.public_url or f"http://{settings.host}:{settings.port}"
    return as_curl(base + route.path, event["headers"] or {}, event["body"])


async def replay_delivery(visit: Visit) -> Response:
    """The form beside a delivery."""
    form = dict(await visit.form())
    id = visit.path("delivery_id")
    effects = form.get("effects", "keep")
    done = await visit.ask(REPLAY, delivery_id=id, effects=effects, reason=form.get("reason"))
    report = effects_report(effects, done["effects_kept"], done["effects_unknown"])
    return back_to(visit.came_from, f"Delivery {id} runs again{report}.")


async def discard_delivery(visit: Visit) -> Response:
    """The other form beside a delivery."""
    form = dict(await visit.form())
    id = visit.path("delivery_id")
    await visit.ask(DISCARD, delivery_id=id, reason=form.get("reason"))
    return back_to(visit.came_from, f"Delivery {id} is discarded.")
