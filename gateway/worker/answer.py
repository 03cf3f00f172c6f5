"""Decide how a forwarded delivery is settled, from the response of its destination."""

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from gateway.base.errors import Defer, PushFailed, Reject
from gateway.base.problems import refusals
from gateway.http.outbound import OutboundResponse
from gateway.worker.policy import BUSY, retry_after

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
