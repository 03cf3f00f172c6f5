"""Dead letters: by what they died of, and what to do about them."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from gateway.api.operations.dead import CAUSES, DEAD
from gateway.api.operations.events import DISCARD, REPLAY
from gateway.api.operations.orders import BEGIN_ORDER
from gateway.console.visit import PREFIX, Visit, back_to, safe_place
from gateway.errors import BadRequest, CommandFailed, TransitionRefused

FILTERS: Final = ("route", "handler", "cause", "error", "type", "account", "since", "until")
COUNTABLE: Final = frozenset({"route", "handler", "cause"})
"""By which dead letters are counted without looking at each of them."""

PER_PAGE: Final = 50
CAUSES_SHOWN: Final = 20
DONE: Final = {"replay": "run again", "discard": "discarded"}


async def show_dead(visit: Visit) -> Response:
    """By what they died of, then the newest."""
    query = visit.query
    filters: dict[str, str] = {name: query[name] for name in FILTERS if name in query}
    page = await visit.ask(DEAD, **filters, after=query.get("after"), limit=PER_PAGE)
    return visit.page(
        "dead.html",
        title="Dead letters",
        died=await visit.ask(CAUSES, **_countable(filters), limit=CAUSES_SHOWN),
        is_counted=_is_countable(filters),
        rows=page["items"],
        next=page["next"],
        per_page=PER_PAGE,
        filters=filters,
        routes=visit.office.project.config.routes,
        all_that_match=urlencode(filters),
    )


def _countable(filters: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in filters.items() if name in COUNTABLE}


def _is_countable(filters: Mapping[str, str]) -> bool:
    """Whether it is known how many match, without looking at each of them."""
    return filters.keys() <= COUNTABLE


async def show_all(visit: Visit) -> Response:
    """What an order for everything that matches would do, counted before it is given."""
    query = visit.query
    action = query.get("action", "")
    if action not in DONE:
        raise BadRequest(f"action: found {action!r}; expected replay or discard")
    filters: dict[str, str] = {name: query[name] for name in FILTERS if name in query}
    counted: dict[str, Any] = {"without_payload": None}
    if _is_countable(filters):
        died = await visit.ask(CAUSES, **filters, limit=CAUSES_SHOWN)
        counted |= {**died, "groups": died["causes"]}
    else:
        matching = await visit.ask(BEGIN_ORDER, **filters, action=action, dry_run=True)
        counted |= {**matching}
    return visit.page(
        "dead_all.html",
        title=f"{action.capitalize()} all that match",
        action=action,
        filters=filters,
        counted=counted,
    )


async def order_all(visit: Visit) -> Response:
    """The order itself; it goes on after the answer, and its page shows how far it has come."""
    form = dict(await visit.form())
    given = {name: form[name] for name in (*FILTERS, "action", "as_of", "reason") if form.get(name)}
    rate = int(form["rate"]) if form.get("rate", "").isdecimal() else None
    ordered = await visit.ask(BEGIN_ORDER, **given, rate=rate)
    if ordered["order"] is None:
        return back_to(f"{PREFIX}/dead", "Nothing matches any more.")
    return back_to(f"{PREFIX}/orders/{ordered['order']['order_id']}")


async def order_ticked(visit: Visit) -> Response:
    """Of the rows that were ticked, one by one: what may not be done is told."""
    fields = await visit.form()
    form = dict(fields)
    ids = [value for name, value in fields if name == "delivery"]
    if not ids:
        raise CommandFailed("no row is ticked")
    return back_to(safe_place(form.get("from")), await _each(visit, form, ids))


async def _each(visit: Visit, form: Mapping[str, str], ids: list[str]) -> str:
    action = form.get("action", "")
    operation = {"replay": REPLAY, "discard": DISCARD}.get(action)
    if operation is None:
        raise BadRequest(f"action: found {action!r}; expected replay or discard")
    done, refused = 0, ""
    for id in ids:
        try:
            await visit.ask(operation, delivery_id=id, reason=form.get("reason"))
            done += 1
        except (CommandFailed, TransitionRefused) as error:
            refused = f" Not done: {error}."
    return f"{done} of {len(ids)} {DONE[action]}.{refused}"
