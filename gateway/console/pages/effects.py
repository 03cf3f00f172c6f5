"""Effects of unknown outcome: which, and making them again or counting them as done."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from starlette.responses import Response

from gateway.api.operations.effects import (
    CONFIRM_EFFECTS,
    EFFECT_GROUPS,
    EFFECTS,
    RESOLVE_ALL_EFFECTS,
    RETRY_EFFECTS,
    EffectsFilter,
)
from gateway.console.pages.dead import read_rate
from gateway.console.visit import PREFIX, Visit, back_to, read_params
from gateway.errors import BadRequest, CommandFailed, NotFound, TransitionRefused

FILTERS: Final = ("route", "handler", "effect", "error", "type", "account", "since", "until")
PER_PAGE: Final = 50
GROUPS_SHOWN: Final = 20
DONE: Final = {"retry": "to be made again", "confirm": "confirmed as done"}


async def show_effects(visit: Visit) -> Response:
    """Counted by handler, name and error, then the newest."""
    query = visit.query
    filters: dict[str, str] = {name: query[name] for name in FILTERS if name in query}
    page = await visit.ask(EFFECTS, **filters, after=query.get("after"), limit=PER_PAGE)
    return visit.page(
        "effects.html",
        title="Unknown effects",
        counted=await visit.ask(EFFECT_GROUPS, **filters, limit=GROUPS_SHOWN),
        rows=page["items"],
        next=page["next"],
        per_page=PER_PAGE,
        groups_shown=GROUPS_SHOWN,
        filters=filters,
        routes=visit.office.project.config.routes,
        all_that_match=urlencode(filters),
    )


async def show_all_effects(visit: Visit) -> Response:
    """Count what matches, before anything is done."""
    query = visit.query
    action = _action(query)
    # Times as they are now: "two hours ago" is another moment once the order is given.
    chosen = read_params(EffectsFilter, {name: query.get(name) for name in FILTERS}).filter
    count = await visit.ask(RESOLVE_ALL_EFFECTS, **chosen.given, action=action, dry_run=True)
    as_of = count["as_of"].isoformat()
    return visit.page(
        "effects_all.html",
        title=f"{action.capitalize()} all that match",
        action=action,
        filters=chosen.given,
        count=count,
        order=urlencode({**chosen.given, "action": action, "as_of": as_of, "from": visit.here}),
    )


async def resolve_all_effects(visit: Visit) -> Response:
    """Begin the order; it goes on after the answer, and its page shows how far it has come."""
    form, query = dict(await visit.form()), visit.query
    chosen = {name: query.get(name) for name in (*FILTERS, "action", "as_of")}
    rate = read_rate(form.get("rate", "").strip())
    ordered = await visit.ask(RESOLVE_ALL_EFFECTS, **chosen, reason=form.get("reason"), rate=rate)
    if ordered["order"] is None:
        return back_to(f"{PREFIX}/effects", "Nothing matches any more.")
    return back_to(f"{PREFIX}/orders/{ordered['order']['order_id']}")


async def resolve_ticked_effects(visit: Visit) -> Response:
    """Resolve the rows that were ticked, one by one, and say which were refused."""
    fields = await visit.form()
    form = dict(fields)
    chosen = [value.partition(" ") for name, value in fields if name == "effect"]
    if not chosen:
        raise CommandFailed("no row is ticked")
    done, refused = 0, ""
    for delivery_id, _, effect in chosen:
        try:
            await _resolve(visit, form, delivery_id, effect)
            done += 1
        except (BadRequest, NotFound, CommandFailed, TransitionRefused) as error:
            refused = f" Not done: {error}."
    notice = f"{done} of {len(chosen)} {DONE[_action(form)]}.{refused}"
    return back_to(visit.came_from, notice)


async def resolve_effect(visit: Visit) -> Response:
    """Resolve one effect, by the form beside it on the page of its event."""
    form = dict(await visit.form())
    effect = visit.query.get("effect", "")
    await _resolve(visit, form, visit.path("delivery_id"), effect)
    return back_to(visit.came_from, f"{effect}: {DONE[_action(form)]}.")


async def _resolve(visit: Visit, form: Mapping[str, str], delivery_id: str, effect: str) -> None:
    operation = RETRY_EFFECTS if _action(form) == "retry" else CONFIRM_EFFECTS
    await visit.ask(operation, delivery_id=delivery_id, effect=effect, reason=form.get("reason"))


def _action(given: Mapping[str, str]) -> str:
    action = given.get("action", "")
    if action not in DONE:
        raise BadRequest(f"action: found {action!r}; expected retry or confirm")
    return action
