"""Decide how a delivery is settled if its run failed: pure functions of the failure."""

import os
import random
import sys
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

import asyncpg
import httpx

from gateway.base.errors import (
    Defer,
    HandlerSignal,
    KeyMissing,
    PayloadGone,
    Reject,
    Retry,
    SealBroken,
    StatementRefused,
    TransactionEnded,
    TransactionReadOnly,
    causes,
)
from gateway.base.model import Backoff, Outcome, RetryPolicy, Status
from gateway.ledger.connection import CONTENDED, MIXED_UP, READ_ONLY
from gateway.privacy.redaction import Hide, as_it_is
from gateway.worker.idempotency import AlreadyDone, KeyInUse


class HandlerTimeout(Exception):
    """The handler ran longer than its timeout."""


DECIDED: Final = (HandlerSignal, HandlerTimeout, StatementRefused, TransactionEnded)
"""Errors that alone decide how the delivery is settled, whatever else failed in its run."""

FINAL: Final = (Reject, StatementRefused, TransactionEnded)
"""Errors after which another attempt would fail again, or do harm."""

RUN_AGAIN: Final = (
    *CONTENDED,
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)
"""Errors that are not the fault of the handler: another run succeeds. The last two mean that what
the driver knows from an earlier delivery is outdated, the columns of a prepared statement (a
changed table, another search_path) or the attributes of a type, and that the driver has dropped it.
"""
PREPARED_BY_DRIVER: Final = "__asyncpg_"
"""How the names of the statements begin that the driver has prepared."""

AFTER_CONFLICT: Final = RetryPolicy(
    attempts=10, base=timedelta(milliseconds=200), cap=timedelta(seconds=10)
)
"""The backoff after these errors. The waits are random and grow, since handlers that conflicted
would conflict again after equal waits. The tenth conflict in a row burns an attempt, and the
handler's own policy applies: if many handlers update one row, a delivery may lose against others
very often, which must not make it dead."""
AFTER_LOSS: Final = timedelta(seconds=1)
WITHOUT_KEY: Final = timedelta(seconds=30)
"""Wait of a delivery whose encryption key this worker does not have. Another worker may have it, or
an operator has to add it."""

AWAY: Final = "Postgres went away: "
MADE_READ_ONLY: Final = (
    "the handler has made its transaction read only. The completion of its delivery is written in "
    "the same transaction: leave it read write"
)
ENDED_IN_BLOCK: Final = (
    "a procedure or a DO block has tried to end the handler's transaction. Leave the end of the "
    "transaction to the gateway"
)

BUSY: Final = frozenset({429, 503, 529})
LINE_CHARS: Final = 500
FRAMES: Final = 16
"""A refused connection has eleven frames of httpx; the handler's own lines are before them."""
RAISED_BY_HTTPX: Final = "\nFor more information check: https://developer.mozilla.org/"
"""The end of the message of `raise_for_status()`. Without it, the handler wrote the message."""
PACKAGE: Final = str(Path(__file__).parents[1]) + os.sep
LONGEST_WAIT: Final = timedelta(days=365)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A run that did not complete: its error, and what else happened meanwhile."""

    error: BaseException
    stopped_because: str | None = None
    """Why the worker stopped the run, if it did."""
    is_away: bool = False
    """Whether Postgres was unreachable, or took no writes."""
    may_have_broken_it: bool = False
    """Whether the run itself may be why its connection was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How a delivery is settled, before its error is encoded for storage."""

    status: Status = Status.PENDING
    outcome: Outcome
    error: BaseException
    text: str | None = None
    """One line to store instead of the error's own."""
    before: str = ""
    """A text before the line of the error."""
    has_detail: bool = False
    """Whether the traceback of the error is stored, too."""
    delay: timedelta = timedelta()
    is_conflict: bool = False


def decide(
    failure: Failure, *, attempt: int, conflicts: int = 0, policy: RetryPolicy, now: datetime
) -> Decision:
    """Return how the delivery is settled.

    `conflicts` is the number of conflicts in a row before this run.
    """
    error = failure.error
    match error:
        case AlreadyDone():
            return Decision(
                status=Status.DONE, outcome=Outcome.SKIPPED, error=error, text=str(error)
            )
        case KeyInUse():
            return Decision(
                outcome=Outcome.RELEASED, error=error, text=str(error), delay=AFTER_LOSS
            )
        case KeyMissing():
            return Decision(outcome=Outcome.DEFERRED, error=error, delay=WITHOUT_KEY)
        case SealBroken() | PayloadGone():
            return Decision(status=Status.DEAD, outcome=Outcome.DEAD, error=error)
    if not isinstance(error, DECIDED):
        if (through_no_fault := _decide_loss(failure, conflicts)) is not None:
            return through_no_fault
        error = _explained(error)
    return _decide_attempt(error, attempt, policy, now)


def _decide_loss(failure: Failure, conflicts: int) -> Decision | None:
    """Return the decision if the run failed through no fault of its handler, or else None."""
    error = failure.error
    if failure.stopped_because is not None:
        return Decision(outcome=Outcome.RELEASED, error=error, text=failure.stopped_because)
    if failure.is_away:
        outcome = Outcome.LOST if failure.may_have_broken_it else Outcome.RELEASED
        return Decision(outcome=outcome, error=error, before=AWAY, delay=AFTER_LOSS)
    tries = conflicts + 1
    may_succeed = is_because(error, RUN_AGAIN) or _is_of_session(error)
    if may_succeed and tries < AFTER_CONFLICT.attempts:
        delay = backoff(AFTER_CONFLICT, tries)
        return Decision(outcome=Outcome.LOST, error=error, delay=delay, is_conflict=True)
    return None


def _explained(error: BaseException) -> BaseException:
    """Return the error, or a clearer one that names what the handler has to change."""
    if isinstance(error, READ_ONLY):  # and the server is not
        clearer: Exception = TransactionReadOnly(f"{error}: {MADE_READ_ONLY}")
    elif isinstance(error, asyncpg.InvalidTransactionTerminationError):
        clearer = StatementRefused(f"{error}: {ENDED_IN_BLOCK}")
    else:
        return error
    return clearer.with_traceback(error.__traceback__)


def _decide_attempt(
    error: BaseException, attempt: int, policy: RetryPolicy, now: datetime
) -> Decision:
    """Return the decision of the handler if it made one, or else a retry by policy."""
    wait = _asked_to_wait(error, policy, now)
    if wait is not None:
        return Decision(outcome=Outcome.DEFERRED, error=error, delay=wait)
    if isinstance(error, FINAL) or attempt >= policy.attempts:
        return Decision(status=Status.DEAD, outcome=Outcome.DEAD, error=error, has_detail=True)
    after = error.after if isinstance(error, Retry) else None
    delay = backoff(policy, attempt) if after is None else _bounded(after)
    return Decision(outcome=Outcome.RETRY, error=error, delay=delay, has_detail=True)


def is_because(error: BaseException, kinds: tuple[type[Exception], ...]) -> bool:
    """Return whether the error, or one of its causes, is of these kinds."""
    return any(isinstance(cause, kinds) for cause in causes(error))


def _is_of_session(error: BaseException) -> bool:
    """Return whether a statement of the driver is missing in a session, or is there already.

    Most likely the delivery that had the session before has dropped it: a function can, unseen.
    """
    return any(
        isinstance(cause, MIXED_UP) and PREPARED_BY_DRIVER in str(cause) for cause in causes(error)
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
