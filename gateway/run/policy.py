"""What becomes of a delivery whose handler raised."""

import random
import sys
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

import httpx

from gateway.errors import Defer, Reject, Retry, StatementRefused, TransactionEnded
from gateway.ledger.deliveries import Settlement
from gateway.model import Backoff, Outcome, RetryPolicy, Status
from gateway.redaction.hiding import Hide, as_it_is

FINAL: Final = (Reject, StatementRefused, TransactionEnded)
"""Errors after which another attempt would do the same, or do harm."""

BUSY: Final = frozenset({429, 503, 529})
LINE_CHARS: Final = 500
FRAMES: Final = 12
LONGEST_WAIT: Final = timedelta(days=365)


def decide(
    error: BaseException,
    *,
    attempt: int,
    policy: RetryPolicy,
    now: datetime,
    hide: Hide = as_it_is,
) -> Settlement:
    """The handler's own decision where it made one, else a retry by policy.

    `hide` takes what nobody is to see out of the error's text.
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
    """The wait after this attempt: between half of it and all of it, so that herds disperse."""
    steps = attempt - 1 if policy.backoff is Backoff.EXPONENTIAL else 0
    full_s = min(policy.base.total_seconds() * 2**steps, policy.cap.total_seconds())
    return timedelta(seconds=random.uniform(full_s / 2, full_s))  # noqa: S311 (jitter)


def summary(error: BaseException, hide: Hide = as_it_is) -> str:
    """The error in one line."""
    text = " ".join(hide(_text(error)).split())[:LINE_CHARS]  # half a value is not recognised
    name = name_of(error)
    return f"{name}: {text}" if text else name


def detail(error: BaseException, hide: Hide = as_it_is) -> str:
    """The error with the frames that led to it."""
    return "\n".join([summary(error, hide), *frames(error)])


def frames(error: BaseException) -> list[str]:
    """Where it came from: lines of code, and no values."""
    lines = traceback.format_tb(error.__traceback__, limit=-FRAMES)
    return [line.rstrip() for line in lines]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the handler's own class, and its `__str__` is broken
        return "(its text cannot be had)"


def name_of(error: BaseException) -> str:
    """In a word, what it is."""
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
    """How long a deferral lasts; None where the error is none. Strangers' waits are capped."""
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
    """A Retry-After header: seconds, or a date (RFC 9110, section 10.2.3)."""
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
    stripe = sys.modules.get("stripe")  # a handler that raised its error has imported it
    return stripe is not None and isinstance(error, stripe.RateLimitError)
