"""Decide how a delivery is settled if its handler raised an error."""

import os
import random
import sys
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

import httpx

from gateway.base.errors import Defer, Reject, Retry, StatementRefused, TransactionEnded
from gateway.base.model import Backoff, Outcome, RetryPolicy, Status
from gateway.ledger.deliveries import Settlement
from gateway.privacy.redaction import Hide, as_it_is

FINAL: Final = (Reject, StatementRefused, TransactionEnded)
"""Errors after which another attempt would fail again, or do harm."""

BUSY: Final = frozenset({429, 503, 529})
LINE_CHARS: Final = 500
FRAMES: Final = 16
"""A refused connection has eleven frames of httpx; the handler's own lines are before them."""
RAISED_BY_HTTPX: Final = "\nFor more information check: https://developer.mozilla.org/"
"""The end of the message of `raise_for_status()`. Without it, the handler wrote the message."""
PACKAGE: Final = str(Path(__file__).parents[1]) + os.sep
LONGEST_WAIT: Final = timedelta(days=365)


def decide(
    error: BaseException,
    *,
    attempt: int,
    policy: RetryPolicy,
    now: datetime,
    hide: Hide = as_it_is,
) -> Settlement:
    """Return the decision of the handler if it made one, or else a retry by policy.

    `hide` removes redacted values from the message of the error.
    """
    wait = _asked_to_wait(error, policy, now)
    if wait is not None:
        return Settlement(
            status=Status.PENDING, outcome=Outcome.DEFERRED, error=summary(error, hide), delay=wait
        )
    if isinstance(error, FINAL) or attempt >= policy.attempts:
        return _dead(error, hide)
    after = error.after if isinstance(error, Retry) else None
    return Settlement(
        status=Status.PENDING,
        outcome=Outcome.RETRY,
        error=summary(error, hide),
        detail=detail(error, hide),
        delay=backoff(policy, attempt) if after is None else _bounded(after),
    )


def backoff(policy: RetryPolicy, attempt: int) -> timedelta:
    """Return the backoff after this attempt.

    It is random between half of the wait and the whole wait, so that deliveries that failed
    together are not retried together.
    """
    steps = attempt - 1 if policy.backoff is Backoff.EXPONENTIAL else 0
    full_s = min(policy.base.total_seconds() * 2**steps, policy.cap.total_seconds())
    return timedelta(seconds=random.uniform(full_s / 2, full_s))  # noqa: S311 (jitter)


def summary(error: BaseException, hide: Hide = as_it_is) -> str:
    """Format the error in one line."""
    text = " ".join(hide(_text(error)).split())[
        :LINE_CHARS
    ]  # truncate last: hide() would not find half a value
    name = name_of(error)
    return f"{name}: {text}" if text else name


def detail(error: BaseException, hide: Hide = as_it_is) -> str:
    """Format the error with its traceback."""
    return "\n".join([summary(error, hide), *frames(error)])


def frames(error: BaseException) -> list[str]:
    """Format the traceback of an error: lines of code, without values.

    Of the gateway's own frames, only the one that raised the error is kept. Those between a handler
    and the library that it calls do not help to find the cause.
    """
    stack = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in stack[:-1] if not frame.filename.startswith(PACKAGE)]
    lines = traceback.format_list([*theirs, *stack[-1:]][-FRAMES:])
    return [line.rstrip() for line in lines]


def _text(error: BaseException) -> str:
    if isinstance(error, httpx.HTTPStatusError) and RAISED_BY_HTTPX in str(error):
        return _answer(error.response, error.request)
    try:
        return str(error)
    except Exception:  # a class of the handler with a broken `__str__`
        return "(its text cannot be had)"


def _answer(response: httpx.Response, request: httpx.Request) -> str:
    """Format an HTTP error shorter than httpx does, and so that dead letters can be grouped by it.

    Grouping ignores quoted text, and numbers that do not follow `HTTP`.
    """
    status = " ".join(filter(None, [f"HTTP {response.status_code}", response.reason_phrase]))
    return f"{status} from {request.method} {request.url.copy_with(query=None, fragment=None)}"


def name_of(error: BaseException) -> str:
    """Return the name of the error in one word."""
    if isinstance(error, Reject):
        return "REJECTED"
    return "TIMEOUT" if isinstance(error, HandlerTimeout) else type(error).__name__


class HandlerTimeout(Exception):
    """The handler ran longer than its timeout."""


def _dead(error: BaseException, hide: Hide) -> Settlement:
    return Settlement(
        status=Status.DEAD,
        outcome=Outcome.DEAD,
        error=summary(error, hide),
        detail=detail(error, hide),
    )


def _asked_to_wait(error: BaseException, policy: RetryPolicy, now: datetime) -> timedelta | None:
    """Return the wait of a deferral, or None if the error is none.

    A wait that another service asked for is capped by the retry policy.
    """
    if isinstance(error, Defer):
        return _bounded(error.after)
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in BUSY:
        asked = retry_after(error.response.headers.get("retry-after"), now)
        return None if asked is None else min(asked, policy.cap)
    if _is_stripe_rate_limit(error):
        headers = httpx.Headers(getattr(error, "headers", None) or {})
        asked = retry_after(headers.get("retry-after"), now)
        return min(policy.base if asked is None else asked, policy.cap)
    return None


def _bounded(delay: timedelta) -> timedelta:
    return min(max(delay, timedelta()), LONGEST_WAIT)


def retry_after(text: str | None, now: datetime) -> timedelta | None:
    """Parse a Retry-After header: seconds or a date (RFC 9110, section 10.2.3)."""
    if text is None:
        return None
    if text.strip().isascii() and text.strip().isdigit():
        return timedelta(seconds=min(int(text.strip()[:9]), 10**9))
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return max(date.replace(tzinfo=date.tzinfo or UTC) - now, timedelta())


def _is_stripe_rate_limit(error: BaseException) -> bool:
    stripe = sys.modules.get("stripe")  # a handler that raised an error of stripe has imported it
    return stripe is not None and isinstance(error, stripe.RateLimitError)
