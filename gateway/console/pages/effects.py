"""Effects with an unknown outcome: list them, run them again or confirm them as done."""

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
from gateway.console.pages.bulk import act_on_each, begin_counted, read_action
from gateway.console.request import ConsoleRequest, back_to, read_params

FILTERS: Final = ("route", "handler", "effect", "error", "type", "account", "since", "until")
PER_PAGE: Final = 50
GROUPS_SHOWN: Final = 20
DONE: Final = {"retry": "to be made again", "confirm": "confirmed as done"}


async def show_effects(visit: ConsoleRequest) -> Response:
    """Show the effects: first the counts by handler, name and error, then the newest ones."""
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
        routes=visit.project.config.routes,
        all_that_match=urlencode(filters),
    )


async def show_all_effects(visit: ConsoleRequest) -> Response:
    """Count the matches for a confirmation page."""
    query = visit.query
    action = read_action(query, DONE)
    # Resolve relative times now: "two hours ago" would be a different time when the form is sent.
    chosen = read_params(EffectsFilter, {name: query.get(name) for name in FILTERS}).filter
    count = await visit.ask(RESOLVE_ALL_EFFECTS, **chosen.given, action=action, dry_run=True)
    as_of = count["as_of"].isoformat()
    return visit.page(
        "effects_all.html",
        title=f"{action.capitalize()} all that match",
        action=action,
        filters=chosen.given,
        count=count,
        confirmed=urlencode({**chosen.given, "action": action, "as_of": as_of, "from": visit.here}),
    )


async def resolve_all_effects(visit: ConsoleRequest) -> Response:
    """Begin the bulk operation that was confirmed."""
    return await begin_counted(visit, RESOLVE_ALL_EFFECTS, "effects", FILTERS)


async def resolve_ticked_effects(visit: ConsoleRequest) -> Response:
    """Resolve the ticked effects."""
    fields = await visit.form()
    form, ticked = dict(fields), [value for name, value in fields if name == "effect"]

    async def act(value: str) -> None:
        delivery_id, _, effect = value.partition(" ")
        await _resolve(visit, form, delivery_id, effect)

    return await act_on_each(visit, ticked, act, DONE[read_action(form, DONE)])


async def resolve_effect(visit: ConsoleRequest) -> Response:
    """Resolve one effect, from its form on the event's page."""
    form = dict(await visit.form())
    effect = visit.query.get("effect", "")
    await _resolve(visit, form, visit.path("delivery_id"), effect)
    return back_to(visit.came_from, f"{effect}: {DONE[read_action(form, DONE)]}.")


async def _resolve(
    visit: ConsoleRequest, form: Mapping[str, str], delivery_id: str, effect: str
) -> None:
    operation = RETRY_EFFECTS if read_action(form, DONE) == "retry" else CONFIRM_EFFECTS
    await visit.ask(operation, delivery_id=delivery_id, effect=effect, reason=form.get("reason"))
