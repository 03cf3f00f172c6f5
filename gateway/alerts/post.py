"""Sends one message to one destination. Neither its URL nor its answer is ever shown."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson

from gateway.alerts.message import slack_message
from gateway.errors import PushFailed
from gateway.ledger.alert_messages import Destination
from gateway.outbound import client
from gateway.outbound.client import Client
from gateway.providers.standard_webhooks import headers, parse_key
from gateway.routes import AlertDestinations
from gateway.secrets import Secret

WEBHOOK: Final[Destination] = "webhook"
SLACK: Final[Destination] = "slack"
ANSWER_S: Final = 10.0
"""From the first packet to the last of the answer, however slowly they come."""
AGENT: Final = "webhook-gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a sending."""

    ok: bool
    text: str
    retry_after: timedelta | None = None


def names(destinations: AlertDestinations) -> list[Destination]:
    """Those that there are."""
    return list(_names(destinations))


def _names(destinations: AlertDestinations) -> Iterator[Destination]:
    if destinations.webhook is not None:
        yield WEBHOOK
    if destinations.slack is not None:
        yield SLACK


async def post(
    http: Client,
    destinations: AlertDestinations,
    destination: Destination,
    *,
    id: str,
    message: Mapping[str, Any],
    now: datetime | None = None,
) -> Answer:
    """Sends it, and waits no longer than it takes to be sure."""
    url, body, sent = _request(destinations, destination, id, message, now or datetime.now(UTC))
    try:
        async with asyncio.timeout(ANSWER_S):
            return _judge(await http.post(url, sent, body))
    except TimeoutError:
        return Answer(ok=False, text=f"no answer within {ANSWER_S:.0f} s")
    except PushFailed as failed:
        return Answer(ok=False, text=str(failed))


def _request(
    destinations: AlertDestinations,
    destination: Destination,
    id: str,
    message: Mapping[str, Any],
    at: datetime,
) -> tuple[str, bytes, dict[str, str]]:
    common = {"content-type": "application/json", "user-agent": AGENT}
    if destination == SLACK:
        body = orjson.dumps(slack_message(message), option=orjson.OPT_UTC_Z)
        return _text(destinations.slack), body, common
    body = orjson.dumps(message, option=orjson.OPT_UTC_Z)
    keys = [] if destinations.key is None else [parse_key(_text(destinations.key))]
    return _text(destinations.webhook), body, common | headers(id, int(at.timestamp()), body, keys)


def _text(secret: Secret | None) -> str:
    return "" if secret is None else secret.reveal().decode()


def _judge(answer: client.Answer) -> Answer:
    """By its status alone: the rest is the receiver's, and may quote what was sent."""
    if answer.is_acknowledged:
        return Answer(ok=True, text=f"status {answer.status}")
    seconds = answer.headers.get("retry-after", "")
    is_wait = seconds.isascii() and seconds.isdigit() and len(seconds) < 6
    retry_after = timedelta(seconds=int(seconds)) if is_wait else None
    return Answer(ok=False, text=f"status {answer.status}", retry_after=retry_after)
