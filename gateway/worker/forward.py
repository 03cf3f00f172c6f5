"""Forwards: push an event to an HTTP service instead of calling a handler."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from string import ascii_letters, digits, punctuation
from typing import Final
from urllib.parse import quote

from gateway.base.errors import PushFailed
from gateway.base.model import Event
from gateway.base.problems import CREDENTIAL
from gateway.config.registry import Subscription
from gateway.config.routes.forward import HEADER_VALUE
from gateway.http.outbound import Destination, OutboundClient
from gateway.providers.standard_webhooks import headers as webhook_headers
from gateway.worker.answer import judge, shortened
from gateway.worker.context import Context, trace_of

USER_AGENT: Final = f"webhook-gateway/{version('webhook-gateway-server')}"
ACCEPT: Final = "application/json, */*;q=0.1"
JSON: Final = "application/json"
HIDDEN: Final = "(hidden)"
VISIBLE: Final = (ascii_letters + digits + punctuation).replace("%", "")
CREDENTIAL_WORD: Final = re.compile(rf"\S*(?:{CREDENTIAL.pattern})\S*")


class Forwarder:
    """Binds the subscriptions of forwards to their destinations."""

    def __init__(
        self, client: OutboundClient, destinations: Mapping[tuple[str, str], Destination]
    ) -> None:
        self._client = client
        self._destinations = destinations

    def bind(self, subscription: Subscription) -> Subscription:
        """Return a runnable subscription. The subscription of a handler is returned unchanged."""
        if subscription.forward is None:
            return subscription
        push = Push(self._client, self._destinations[subscription.key], subscription)
        return replace(subscription, function=push)


class Push:
    """Pushes events to one destination. It is called like a handler and raises like one."""

    def __init__(
        self, client: OutboundClient, destination: Destination, subscription: Subscription
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
    """Return the headers of the push.

    Of the original request's headers, only the content type is forwarded.
    """
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
    """Percent-encode the characters that a header cannot contain, as UTF-8."""
    return quote(text, safe=VISIBLE)
