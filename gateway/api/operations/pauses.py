"""Pauses of handlers."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

from pydantic import Field

from gateway.api.operation import Operation, Params
from gateway.api.parameters import Text
from gateway.api.shapes import PausedAnswer, PauseRow, ResumedAnswer
from gateway.base.errors import ConfigInvalid
from gateway.ledger.pauses import Handler, Pause, list_pauses
from gateway.operations.context import OperationContext
from gateway.operations.pause import pause, resume

RouteOf = Annotated[Text, Field(description="The route.")]
HandlerOf = Annotated[
    Text | None, Field(description="One handler of it; without: all that the route has.")
]


class PausesParams(Params):
    """No parameters."""


class PauseParams(Params):
    """The route or handler to pause, and the reason."""

    route: RouteOf
    handler: HandlerOf = None
    reason: Annotated[Text, Field(description="Why, for `gateway status` and the audit log.")]


class ResumeParams(Params):
    """The route or handler to resume."""

    route: RouteOf
    handler: HandlerOf = None
    reason: Annotated[Text | None, Field(description="Why, for the audit log.")] = None


def pause_row(pause: Pause) -> PauseRow:
    """Convert a pause to a row of the listing."""
    row: PauseRow = asdict(pause)  # type: ignore[assignment]
    return row


async def _pauses(office: OperationContext, _: PausesParams) -> list[PauseRow]:
    return [pause_row(pause) for pause in await list_pauses(office.ledger)]


async def _pause(office: OperationContext, params: PauseParams) -> PausedAnswer:
    paused = await pause(
        office.ledger,
        params.route,
        params.handler,
        actor=office.actor,
        reason=params.reason,
        configured=lambda: list(_configured(office)),
        names=office.names,
    )
    answer: PausedAnswer = asdict(paused)  # type: ignore[assignment]
    return answer


def _configured(office: OperationContext) -> Iterator[Handler]:
    """Return every route with its handlers, and by itself. Empty if the project is not loadable."""
    with suppress(ConfigInvalid):
        project = office.project
        yield from ((route.name, "") for route in project.config.routes)
        yield from (subscription.key for subscription in project.registry.subscriptions)


async def _resume(office: OperationContext, params: ResumeParams) -> ResumedAnswer:
    resumed = await resume(
        office.ledger,
        params.route,
        params.handler,
        actor=office.actor,
        reason=params.reason,
        names=office.names,
    )
    await office.wake(resumed.due)
    return {
        "route": resumed.route,
        "handler": resumed.handler,
        "since": resumed.since,
        "waiting": resumed.waiting,
        "still_paused": [pause_row(pause) for pause in resumed.still_paused],
    }


PAUSES = Operation(
    name="pauses",
    method="GET",
    path="/pauses",
    summary="What is paused, by whom, since when and why.",
    params=PausesParams,
    result=list[PauseRow],
    run=_pauses,
)
PAUSE = Operation(
    name="pause",
    method="POST",
    path="/pause",
    summary="Let a handler, or all of a route, wait: no worker begins another delivery of it.",
    params=PauseParams,
    result=PausedAnswer,
    run=_pause,
)
RESUME = Operation(
    name="resume",
    method="POST",
    path="/resume",
    summary="End a pause.",
    params=ResumeParams,
    result=ResumedAnswer,
    run=_resume,
)
