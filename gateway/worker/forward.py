"""Forwards: push an event to an HTTP service, and settle its delivery by the response."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from importlib.metadata import version
from string import ascii_letters, digits, punctuation
from typing import Annotated, Final
from urllib.parse import quote

import orjson
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from gateway.base.errors import Defer, PushFailed, Reject
from gateway.base.model import Event, HandlerKey
from gateway.base.problems import CREDENTIAL, refusals
from gateway.config.registry import Subscription
from gateway.config.routes.forward import HEADER_VALUE
from gateway.http.outbound import Destination, OutboundClient, OutboundResponse
from gateway.providers.standard_webhooks import headers as webhook_headers
from gateway.worker.context import Context, trace_of
from gateway.worker.policy import BUSY, retry_after

USER_AGENT: Final = f"webhook-gateway/{version('webhook-gateway-server')}"
ACCEPT: Final = "application/json, */*;q=0.1"
JSON: Final = "application/json"
HIDDEN: Final = "(hidden)"
VISIBLE: Final = (ascii_letters + digits + punctuation).replace("%", "")
CREDENTIAL_WORD: Final = re.compile(rf"\S*(?:{CREDENTIAL.pattern})\S*")


class Forwarder:
    """Binds the subscriptions of forwards to their destinations."""

    def __init__(
        self, client: OutboundClient, destinations: Mapping[HandlerKey, Destination]
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


SHORTEST_DEFERRAL: Final = timedelta(seconds=1)
"""Minimum wait of a deferral. It burns no attempt, so without a wait it would be a busy loop."""
LONGEST_DEFERRAL: Final = timedelta(days=30)
REDIRECTS: Final = range(300, 400)
SHOWN_CHARS: Final = 300
MEANT: Final = re.compile(rb'\s*\{.*"(?:nack|defer)"', re.DOTALL)
"""Matches the start of a JSON object with a decision, even if the rest is not valid JSON."""

Hide = Callable[[str], str]


class Nack(BaseModel):
    """The service did not accept the event."""

    model_config = ConfigDict(hide_input_in_errors=True)

    retryable: Annotated[bool, Strict()] = True
    reason: str = ""


class Deferral(BaseModel):
    """The service asks to send the event again later."""

    model_config = ConfigDict(hide_input_in_errors=True)

    retry_after_s: Annotated[
        float, Strict(), Field(alias="retryAfter", ge=0, le=LONGEST_DEFERRAL.total_seconds())
    ]


class PushDecision(BaseModel):
    """The decision in the body of a response. It overrides the status, whatever that is."""

    model_config = ConfigDict(hide_input_in_errors=True)

    nack: Nack | None = None
    defer: Deferral | None = None


def judge(answer: OutboundResponse, *, now: datetime, cap: timedelta, hide: Hide) -> None:
    """Return if the delivery is acknowledged. Raises Reject, Defer or PushFailed if it is not.

    `hide` removes secrets from a text.
    """
    told = _told(answer, hide)
    if answer.status in REDIRECTS:
        raise PushFailed(f"{told}: redirects are not followed")
    decision = _decision(answer.body)
    if decision is not None:
        _obey(decision, answer.status, hide)
    if answer.is_acknowledged:
        return
    if answer.status == HTTPStatus.GONE:
        raise Reject(told)
    wait = retry_after(answer.headers.get("retry-after"), now) if answer.status in BUSY else None
    if wait is not None:
        raise Defer(told, after=max(min(wait, cap), SHORTEST_DEFERRAL))
    raise PushFailed(told)


def _decision(body: bytes | None) -> PushDecision | None:
    """Return the decision in the body, or None if there is none.

    Raises PushFailed for a malformed decision, because it is no acknowledgement.
    """
    text = body or b""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if MEANT.match(text) is None:
            return None
        raise PushFailed(f"the answer cannot be understood: {error.msg}") from None
    if not isinstance(document, dict) or document.keys().isdisjoint(PushDecision.model_fields):
        return None
    try:
        return PushDecision.model_validate(document)
    except ValidationError as error:
        wrong = next(refusals(error))
    key = ".".join(map(str, wrong.location))
    raise PushFailed(f"the answer cannot be understood: {key}: expected {wrong.expected}")


def _obey(decision: PushDecision, status: int, hide: Hide) -> None:
    nack, deferral = decision.nack, decision.defer
    if nack is not None:
        reason = shortened(hide(nack.reason)) or "the service gives no reason"
        told = f"nack (HTTP {status}): {reason}"
        raise PushFailed(told) if nack.retryable or deferral is not None else Reject(told)
    if deferral is not None:
        after = timedelta(seconds=deferral.retry_after_s)
        raise Defer(f"the service deferred (HTTP {status})", after=max(after, SHORTEST_DEFERRAL))


def _told(answer: OutboundResponse, hide: Hide) -> str:
    """Describe a response by its status and the beginning of its body."""
    head = f"HTTP {answer.status}"
    with suppress(ValueError):  # the service uses a non-standard status
        head = f"{head} {HTTPStatus(answer.status).phrase}"
    if answer.status in REDIRECTS or not answer.body:
        return head
    return f"{head}: {shortened(hide(answer.body.decode('utf-8', 'replace')))}".removesuffix(": ")


def shortened(text: str) -> str:
    """Truncate a text and put it on one line, without terminal control characters."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:SHOWN_CHARS]
