"""Events: the list, and one of them with all that happened to it."""

import shlex
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from starlette.responses import Response

from gateway.api.operations.events import DISCARD, EVENTS, REPLAY, REVEAL, SHOW
from gateway.api.shapes import EventDetail
from gateway.console.tree import draw_tree
from gateway.console.visit import PREFIX, Visit, back_to, safe_place
from gateway.errors import CommandFailed, NotFound
from gateway.model import Status, payload_bytes
from gateway.operate.record import record
from gateway.samples import dump_recorded

FILTERS: Final = ("route", "type", "status", "handler", "account", "object", "since", "until")
PER_PAGE: Final = 50
LONGEST_SHOWN: Final = 256 * 1024
"""Of a body, on a page: the rest can be had with `gateway show --body`."""


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
    form = dict(await visit.form())
    found = await visit.ask(
        REVEAL, id=form.get("id"), route=form.get("route"), reason=form.get("reason")
    )
    return _event_page(visit, found[0])


def _event_page(visit: Visit, event: EventDetail) -> Response:
    document, body = _document(event), event["body"]
    return visit.page(
        "event.html",
        title=event["event_id"],
        event=event,
        tree=None if document is None else draw_tree(document),
        raw=None if body is None else body[:LONGEST_SHOWN],
        is_cut=body is not None and len(body) > LONGEST_SHOWN,
        curl=_curl(visit, event),
        here=event_path(event["route"], event["event_id"]),
    )


async def save_event(visit: Visit) -> Response:
    """A file for tests and rehearsals, as `gateway show --save` writes it."""
    event: dict[str, Any] = {**(await _event(visit))}
    if event["body_base64"] is not None:
        raise CommandFailed("the payload is not JSON: save its bytes with `gateway show --body`")
    event["body"] = None if event["body"] is None else event["body"].encode()
    recorded, _ = record(event)
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in recorded.type)
    disposition = f'attachment; filename="{name}.json"'
    headers = {"content-disposition": disposition}
    return Response(dump_recorded(recorded), media_type="application/json", headers=headers)


def _document(event: EventDetail) -> Any:
    if event["body"] is None or event["body_base64"] is not None:
        return None
    try:
        return orjson.loads(payload_bytes(event["headers"] or {}, event["body"].encode()))
    except ValueError:
        return None


def _curl(visit: Visit, event: EventDetail) -> str | None:
    """The request as it came, for a shell: what signs a time is refused once that is old."""
    if event["body"] is None or event["body_base64"] is not None:
        return None
    config, settings = visit.office.project.config, visit.office.settings
    path = next((r.path for r in config.doors if r.name == event["route"]), None)
    if path is None or len(event["body"]) > LONGEST_SHOWN:
        return None
    base = settings.public_url or f"http://{settings.host}:{settings.port}"
    skipped = ("content-length", "host", "connection", "accept-encoding")
    lines = [f"curl {shlex.quote(base + path)}"]
    for name, value in (event["headers"] or {}).items():
        if name not in skipped:
            lines.append(f"  -H {shlex.quote(f'{name}: {value}')}")
    lines.append(f"  --data-binary {shlex.quote(event['body'])}")
    return " \\\n".join(lines)


async def replay_delivery(visit: Visit) -> Response:
    """The form beside a delivery."""
    form = dict(await visit.form())
    id = visit.path("delivery_id")
    await visit.ask(REPLAY, delivery_id=id, reason=form.get("reason"))
    return back_to(safe_place(form.get("from")), f"Delivery {id} runs again.")


async def discard_delivery(visit: Visit) -> Response:
    """The other form beside a delivery."""
    form = dict(await visit.form())
    id = visit.path("delivery_id")
    await visit.ask(DISCARD, delivery_id=id, reason=form.get("reason"))
    return back_to(safe_place(form.get("from")), f"Delivery {id} is discarded.")
