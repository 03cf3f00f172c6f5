"""The overview: problems that need attention first, then charts."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from starlette.responses import Response

from gateway.api.operations.health import STATUS
from gateway.base.model import Outcome
from gateway.console.charts import Chart, fill
from gateway.console.pages.routes import sendable_types
from gateway.console.request import ConsoleRequest
from gateway.ledger.statistics import History, Span, read_history
from gateway.operations.health.snapshot import HandlerState

SPANS: Final = {
    "1h": Span(length=timedelta(hours=1), step=timedelta(minutes=1)),
    "24h": Span(length=timedelta(hours=24), step=timedelta(hours=1)),
    "7d": Span(length=timedelta(days=7), step=timedelta(hours=1)),
}
REQUESTS: Final = {
    "accepted": ("good", ("accepted",)),
    "duplicate": ("dull", ("duplicate",)),
    "ignored": ("faint", ("ignored",)),
    "refused": ("bad", ("refused",)),
}
RUNS: Final = {
    "done": ("good", (Outcome.DONE, Outcome.SKIPPED)),
    "failed, tried again": ("warn", (Outcome.RETRY,)),
    "dead": ("bad", (Outcome.DEAD,)),
}


async def show_overview(visit: ConsoleRequest) -> Response:
    chosen = visit.query.get("span", "1h")
    span = SPANS.get(chosen, SPANS["1h"])
    project = visit.project
    status, history = await asyncio.gather(
        visit.ask(STATUS), read_history(visit.office.ledger, span)
    )
    return visit.page(
        "overview.html",
        title="Overview",
        status=status,
        now=status.at,
        chosen=chosen if chosen in SPANS else "1h",
        spans=SPANS,
        charts=_charts(history, span),
        history=history,
        waiting=sum(handler.pending for handler in status.handlers),
        oldest_at=_oldest(status.handlers),
        running=sum(handler.running for handler in status.handlers),
        dead=sum(handler.dead for handler in status.handlers),
        unknown=sum(handler.unknown_effects for handler in status.handlers),
        capped={state for handler in status.handlers for state in handler.capped},
        is_new=all(route.last_event_at is None for route in status.routes),
        doors=project.config.doors,
        first_types={
            route.name: next(iter(sendable_types(route, project.registry)), None)
            for route in project.config.doors
        },
    )


def _charts(history: History, span: Span) -> list[Chart]:
    counted = {
        "Requests": fill(history.requests, REQUESTS),
        "Runs of handlers": fill(history.runs, RUNS),
    }
    return [
        Chart(title=title, start=history.start, step=span.step, series=series)
        for title, series in counted.items()
    ]


def _oldest(handlers: Sequence[HandlerState]) -> datetime | None:
    due = [handler.oldest_due_at for handler in handlers]
    return min((at for at in due if at is not None), default=None)
