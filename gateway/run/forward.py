"""Forwards: what stands in the place of a handler and pushes the event to somebody's service."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from string import ascii_letters, digits, punctuation
from typing import Final
from urllib.parse import quote

from gateway.errors import PushFailed
from gateway.model import Event
from gateway.notation.problems import CREDENTIAL
from gateway.outbound.client import Client
from gateway.outbound.destination import Destination
from gateway.providers.standard_webhooks import headers as webhook_headers
from gateway.registry import Subscription
from gateway.routes.forward import HEADER_VALUE
from gateway.run.answer import judge, shortened
from gateway.run.context import Context, trace_of

USER_AGENT: Final = f"webhook-gateway/{version('webhook-gateway-server')}"
ACCEPT: Final = "application/json, */*;q=0.1"
JSON: Final = "application/json"
HIDDEN: Final = "(hidden)"
VISIBLE: Final = (ascii_letters + digits + punctuation).replace("%", "")
CREDENTIAL_WORD: Final = re.compile(rf"\S*(?:{CREDENTIAL.pattern})\S*")


class Forwarder:
    """Puts what pushes into the subscriptions of a worker."""

    def __init__(self, client: Client, destinations: Mapping[tuple[str, str], Destination]) -> None:
        self._client = client
        self._destinations = destinations

    def bind(self, subscription: Subscription) -> Subscription:
        """The same subscription, able to run; a handler's is so already."""
        if subscription.forward is None:
            return subscription
        push = Push(self._client, self._destinations[subscription.key], subscription)
        return replace(subscription, function=push)


class Push:
    """One destination. Called like a handler, and what becomes of it is told like by one."""

    def __init__(
        self, client: Client, destination: Destination, subscription: Subscription
    ) -> None:
        self._client = client
        self._destination = destination
        self._longest_wait = subscription.retry.cap

    async def __call__(self, event: Event, ctx: Context) -> None:
        to, now = self._destination, datetime.now(UTC)
        headers = make_headers(to, event, id=ctx.idempotency_key(), attempt=ctx.attempt, now=now)
        if (trace := trace_of(ctx)) is not None:
            headers["traceparent"] = trace
        try:
            answer = await self._client.post(to.url, headers, event.body)
        except PushFailed as error:
            told = shortened(self._hide(str(error)))
            raise type(error)(told) from None
        judge(answer, now=datetime.now(UTC), cap=self._longest_wait, hide=self._hide)

    def _hide(self, text: str) -> str:
        for secret in self._destination.secrets:
            text = text.replace(secret, HIDDEN)
        return CREDENTIAL_WORD.sub(HIDDEN, text)


def make_headers(
    to: Destination, event: Event, *, id: str, attempt: int, now: datetime
) -> dict[str, str]:
    """What goes out with the body. Nothing of the original request but the type of its content."""
    content_type = event.headers.get("content-type", "")
    return {
        "user-agent": USER_AGENT,
        "accept": ACCEPT,
        **{name.lower(): value for name, value in to.headers.items()},
        "accept-encoding": "identity",
        "content-type": content_type if HEADER_VALUE.fullmatch(content_type) else JSON,
        "gateway-event-id": _visible(event.id),
        "gateway-event-type": _visible(event.type),
        "gateway-route": event.route,
        "gateway-attempt": str(attempt),
        **webhook_headers(id, int(now.timestamp()), event.body, to.keys),
    }


def _visible(text: str) -> str:
    """As a header can carry it: other characters are percent-encoded, as UTF-8."""
    return quote(text, safe=VISIBLE)
