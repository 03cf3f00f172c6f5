"""Pauses: handlers that no worker is to run for now."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

from pydantic import Field

from gateway.api.office import Office
from gateway.api.operation import Operation, Params
from gateway.api.shapes import PausedAnswer, PauseRow, ResumedAnswer
from gateway.api.values import Text
from gateway.errors import ConfigInvalid
from gateway.ledger.pauses import Handler, Pause, list_pauses
from gateway.operate.pause import pause, resume

RouteOf = Annotated[Text, Field(description="The route.")]
HandlerOf = Annotated[
    Text | None, Field(description="One handler of it; without: all that the route has.")
]


class PausesParams(Params):
    """Nothing to choose."""


class PauseParams(Params):
    """What is to wait, and why."""

    route: RouteOf
    handler: HandlerOf = None
    reason: Annotated[Text, Field(description="Why, for `gateway status` and the audit log.")]


class ResumeParams(Params):
    """What is to go on."""

    route: RouteOf
    handler: HandlerOf = None
    reason: Annotated[Text | None, Field(description="Why, for the audit log.")] = None


def pause_row(pause: Pause) -> PauseRow:
    """As it is listed."""
    row: PauseRow = asdict(pause)  # type: ignore[assignment]
    return row


async def _pauses(office: Office, _: PausesParams) -> list[PauseRow]:
    return [pause_row(pause) for pause in await list_pauses(office.ledger)]


async def _pause(office: Office, params: PauseParams) -> PausedAnswer:
    paused = await pause(
        office.ledger,
        params.route,
        params.handler,
        actor=office.actor,
        reason=params.reason,
        configured=lambda: list(_configured(office)),
    )
    answer: PausedAnswer = asdict(paused)  # type: ignore[assignment]
    return answer


def _configured(office: Office) -> Iterator[Handler]:
    """Routes with their handlers, and each route by itself; none where it cannot be read here."""
    with suppress(ConfigInvalid):
        project = office.project
        yield from ((route.name, "") for route in project.config.routes)
        yield from (subscription.key for subscription in project.registry.subscriptions)


async def _resume(office: Office, params: ResumeParams) -> ResumedAnswer:
    resumed = await resume(
        office.ledger, params.route, params.handler, actor=office.actor, reason=params.reason
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
