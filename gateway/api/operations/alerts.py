"""Alerts: the firing ones, and a test of their destinations."""

import asyncio
import os
from datetime import UTC, datetime
from uuid import uuid4

from typing_extensions import TypedDict

from gateway.api.operation import Operation, Params
from gateway.base.errors import CommandFailed
from gateway.config.routes import check_alerts
from gateway.http.outbound import OutboundClient
from gateway.ledger.alerts import AlertRow, list_alerts
from gateway.ledger.connection import QUERIES
from gateway.operations.alerts.message import make_test, names, post
from gateway.operations.context import OperationContext


class NoParams(Params):
    """No parameters."""


class Tested(TypedDict):
    """The response of a destination to a test message."""

    destination: str
    ok: bool
    answer: str


async def _alerts(office: OperationContext, _: NoParams) -> list[AlertRow]:
    return await list_alerts(office.ledger)


async def _test(office: OperationContext, _: NoParams) -> list[Tested]:
    config = office.project.config
    destinations = check_alerts(config, os.environ)
    asked = names(destinations)
    if not asked:
        raise CommandFailed(f"{config.file}: there is no `alerts`, so nobody is told")
    await office.ledger.execute(QUERIES["note_test"], office.actor)
    message, id = make_test(datetime.now(UTC)), f"alert_test_{uuid4().hex}"
    async with OutboundClient(most_connections=1) as http:
        answers = await asyncio.gather(
            *(post(http, destinations, name, id=id, message=message) for name in asked)
        )
    return [
        {"destination": name, "ok": answer.ok, "answer": answer.text}
        for name, answer in zip(asked, answers, strict=True)
    ]


ALERTS = Operation(
    name="alerts",
    method="GET",
    path="/alerts",
    summary="Alerts that stand, oldest first, and who was told of them.",
    params=NoParams,
    result=list[AlertRow],
    run=_alerts,
)
TEST_ALERTS = Operation(
    name="test_alerts",
    method="POST",
    path="/alerts/test",
    summary="Send a test message to everyone who is told of alerts.",
    params=NoParams,
    result=list[Tested],
    run=_test,
)
