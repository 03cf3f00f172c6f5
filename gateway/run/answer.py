"""What the answer of a service means for the delivery that was pushed to it."""

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from gateway.errors import Defer, PushFailed, Reject
from gateway.notation.problems import refusals
from gateway.outbound.client import Answer
from gateway.run.policy import BUSY, retry_after

SHORTEST_DEFERRAL: Final = timedelta(seconds=1)
"""A deferral burns no attempt: one of no time would be a circle at full speed."""
LONGEST_DEFERRAL: Final = timedelta(days=30)
REDIRECTS: Final = range(300, 400)
SHOWN_CHARS: Final = 300
MEANT: Final = re.compile(rb'\s*\{.*"(?:nack|defer)"', re.DOTALL)
"""How an object begins that would hold a decision, if it were JSON to its end."""

Hide = Callable[[str], str]


class Nack(BaseModel):
    """It was not taken."""

    model_config = ConfigDict(hide_input_in_errors=True)

    retryable: Annotated[bool, Strict()] = True
    reason: str = ""


class Deferral(BaseModel):
    """It is to be sent again later."""

    model_config = ConfigDict(hide_input_in_errors=True)

    retry_after_s: Annotated[
        float, Strict(), Field(alias="retryAfter", ge=0, le=LONGEST_DEFERRAL.total_seconds())
    ]


class Decision(BaseModel):
    """What a service may say in the body of its answer, whatever the status."""

    model_config = ConfigDict(hide_input_in_errors=True)

    nack: Nack | None = None
    defer: Deferral | None = None


def judge(answer: Answer, *, now: datetime, cap: timedelta, hide: Hide) -> None:
    """Returns where the delivery is acknowledged. Raises Reject, Defer or PushFailed.

    `hide` takes out of a text what must not be shown.
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


def _decision(body: bytes | None) -> Decision | None:
    """None where the body holds none. One that is meant but malformed is no acknowledgement."""
    text = body or b""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if MEANT.match(text) is None:
            return None
        raise PushFailed(f"the answer cannot be understood: {error.msg}") from None
    if not isinstance(document, dict) or document.keys().isdisjoint(Decision.model_fields):
        return None
    try:
        return Decision.model_validate(document)
    except ValidationError as error:
        wrong = next(refusals(error))
    key = ".".join(map(str, wrong.location))
    raise PushFailed(f"the answer cannot be understood: {key}: expected {wrong.expected}")


def _obey(decision: Decision, status: int, hide: Hide) -> None:
    nack, deferral = decision.nack, decision.defer
    if nack is not None:
        reason = shortened(hide(nack.reason)) or "the service gives no reason"
        told = f"nack (HTTP {status}): {reason}"
        raise PushFailed(told) if nack.retryable or deferral is not None else Reject(told)
    if deferral is not None:
        after = timedelta(seconds=deferral.retry_after_s)
        raise Defer(f"the service deferred (HTTP {status})", after=max(after, SHORTEST_DEFERRAL))


def _told(answer: Answer, hide: Hide) -> str:
    """Its status, and how its body begins."""
    head = f"HTTP {answer.status}"
    with suppress(ValueError):  # a status of its own
        head = f"{head} {HTTPStatus(answer.status).phrase}"
    if answer.status in REDIRECTS or not answer.body:
        return head
    return f"{head}: {shortened(hide(answer.body.decode('utf-8', 'replace')))}".removesuffix(": ")


def shortened(text: str) -> str:
    """On one line, without what a terminal would obey."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:SHOWN_CHARS]
