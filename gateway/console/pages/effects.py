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
from gateway.base.errors import BadRequest, CommandFailed, NotFound, TransitionRefused
from gateway.console.pages.dead import read_rate
from gateway.console.request import PREFIX, ConsoleRequest, back_to, read_params

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
    action = _action(query)
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
    """Start the bulk operation.

    It continues after the response, and its page shows the progress.
    """
    form, query = dict(await visit.form()), visit.query
    chosen = {name: query.get(name) for name in (*FILTERS, "action", "as_of")}
    rate = read_rate(form.get("rate", "").strip())
    begun = await visit.ask(RESOLVE_ALL_EFFECTS, **chosen, reason=form.get("reason"), rate=rate)
    if begun["bulk"] is None:
        return back_to(f"{PREFIX}/effects", "Nothing matches any more.")
    return back_to(f"{PREFIX}/bulk/{begun['bulk']['bulk_id']}")


async def resolve_ticked_effects(visit: ConsoleRequest) -> Response:
    """Resolve the selected rows one by one, and report the rejected ones."""
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


async def resolve_effect(visit: ConsoleRequest) -> Response:
    """Resolve one effect, from its form on the event's page."""
    form = dict(await visit.form())
    effect = visit.query.get("effect", "")
    await _resolve(visit, form, visit.path("delivery_id"), effect)
    return back_to(visit.came_from, f"{effect}: {DONE[_action(form)]}.")


async def _resolve(
    visit: ConsoleRequest, form: Mapping[str, str], delivery_id: str, effect: str
) -> None:
    operation = RETRY_EFFECTS if _action(form) == "retry" else CONFIRM_EFFECTS
    await visit.ask(operation, delivery_id=delivery_id, effect=effect, reason=form.get("reason"))


def _action(given: Mapping[str, str]) -> str:
    action = given.get("action", "")
    if action not in DONE:
        raise BadRequest(f"action: found {action!r}; expected retry or confirm")
    return action
