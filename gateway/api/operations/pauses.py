"""Pauses of handlers."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

from pydantic import Field

from gateway.api.operation import Operation, Params
from gateway.api.parameters import Text
from gateway.base.errors import ConfigInvalid
from gateway.ledger.pauses import Handler, list_pauses
from gateway.operations.context import OperationContext
from gateway.operations.pause import (
    PausedAnswer,
    PauseRow,
    ResumedAnswer,
    pause,
    pause_row,
    resume,
)

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


async def _pauses(context: OperationContext, _: PausesParams) -> list[PauseRow]:
    return [pause_row(pause) for pause in await list_pauses(context.ledger)]


async def _pause(context: OperationContext, params: PauseParams) -> PausedAnswer:
    return await pause(
        context.ledger,
        params.route,
        params.handler,
        actor=context.actor,
        reason=params.reason,
        configured=lambda: list(_configured(context)),
        names=context.names,
    )


def _configured(context: OperationContext) -> Iterator[Handler]:
    """Return every route with its handlers, and by itself. Empty if the project is not loadable."""
    with suppress(ConfigInvalid):
        project = context.project
        yield from ((route.name, "") for route in project.config.routes)
        yield from (subscription.key for subscription in project.registry.subscriptions)


async def _resume(context: OperationContext, params: ResumeParams) -> ResumedAnswer:
    answer, due = await resume(
        context.ledger,
        params.route,
        params.handler,
        actor=context.actor,
        reason=params.reason,
        names=context.names,
    )
    await context.wake(due)
    return answer


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
