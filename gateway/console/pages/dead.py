"""Dead letters: list them grouped by cause, replay and discard them."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from gateway.api.operation import Operation
from gateway.api.operations.bulk import BEGIN_BULK
from gateway.api.operations.dead import CAUSES, DEAD, DeadFilter
from gateway.api.operations.events import DISCARD, REPLAY
from gateway.console.pages.bulk import act_on_each, begin_counted, read_action
from gateway.console.request import ConsoleRequest, read_params
from gateway.ledger.bulk import read_clock
from gateway.ledger.filter import Filter
from gateway.operations.bulk import Count, count_dead, count_dead_effects

FILTERS: Final = ("route", "handler", "cause", "error", "type", "account", "since", "until")
COUNTABLE: Final = frozenset({"route", "handler", "cause"})
"""Filters for which dead letters are counted per group, without reading each row."""

PER_PAGE: Final = 50
CAUSES_SHOWN: Final = 20
LOOKED_AT: Final = 5_000
"""Maximum number of dead letters that are read to count the matches for a confirmation page."""

DONE: Final = {"replay": "run again", "discard": "discarded"}


async def show_dead(visit: ConsoleRequest) -> Response:
    """Show dead letters: first the causes, then the newest ones."""
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
        causes_shown=CAUSES_SHOWN,
        filters=filters,
        routes=visit.project.config.routes,
        all_that_match=urlencode(filters),
    )


def _countable(filters: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in filters.items() if name in COUNTABLE}


def _is_countable(filters: Mapping[str, str]) -> bool:
    """Whether the matches can be counted without reading each row."""
    return filters.keys() <= COUNTABLE


async def show_all(visit: ConsoleRequest) -> Response:
    """Show the effect of an action on all matches, for confirmation."""
    query = visit.query
    action = read_action(query, DONE)
    # Resolve relative times now: "two hours ago" would be a different time when the form is sent.
    chosen = read_params(DeadFilter, {name: query.get(name) for name in FILTERS}).filter
    as_of = await read_clock(visit.office.ledger, None)
    count = await _count(visit, chosen, as_of)
    if action == "replay" and count.is_whole and count.total <= LOOKED_AT:
        known = chosen.identified(await visit.office.read_names())
        effects = await count_dead_effects(visit.office.ledger, known, as_of)
        count = replace(count, effects=effects)
    return visit.page(
        "dead_all.html",
        title=f"{action.capitalize()} all that match",
        action=action,
        filters=chosen.given,
        count=count,
        looked_at=LOOKED_AT,
        confirmed=urlencode(
            {**chosen.given, "action": action, "as_of": as_of.isoformat(), "from": visit.here}
        ),
    )


async def _count(visit: ConsoleRequest, chosen: Filter, as_of: datetime) -> Count:
    """Count the matches.

    Exact if the sweep has assigned groups, or if there are few enough to read.
    """
    if not _is_countable(chosen.given):
        ledger, names = visit.office.ledger, await visit.office.read_names()
        known = chosen.identified(names)
        count = await count_dead(ledger, known, as_of, CAUSES_SHOWN, look_at=LOOKED_AT)
        return replace(count, groups=names.labelled(count.groups))
    died = await visit.ask(CAUSES, **chosen.given, limit=CAUSES_SHOWN)
    return Count(total=died["total"], groups=died["causes"])


async def act_on_all(visit: ConsoleRequest) -> Response:
    """Begin the bulk operation that was confirmed."""
    return await begin_counted(visit, BEGIN_BULK, "dead", FILTERS, "effects")


async def act_on_ticked(visit: ConsoleRequest) -> Response:
    """Replay or discard the ticked dead letters."""
    fields = await visit.form()
    form, ids = dict(fields), [value for name, value in fields if name == "delivery"]
    action = read_action(form, DONE)
    operation: Operation[Any, Any] = REPLAY if action == "replay" else DISCARD

    async def act(id: str) -> None:
        await visit.ask(operation, delivery_id=id, reason=form.get("reason"))

    return await act_on_each(visit, ids, act, DONE[action])
