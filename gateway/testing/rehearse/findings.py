"""The report of a rehearsal: which schedules were tried, and each finding with its advice."""

import re
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Final

from gateway.testing.guard import Escape, is_users
from gateway.testing.rehearse.database import JOBS, Difference
from gateway.testing.rehearse.sandbox import End
from gateway.testing.rehearse.schedules import Way
from gateway.testing.rehearse.trace import (
    ExternalCall,
    Step,
    StepKind,
    without_secrets,
)


class Fault(StrEnum):
    """The kind of failure when a body runs more than once."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    RAISES = "raises"
    CALLED = "called"
    RACE = "race"
    OVERLAP = "overlap"
    LOST = "lost"
    MEMORY = "memory"
    SHARED_KEY = "shared key"
    ORDER = "order"
    ESCAPE = "escape"
    FORGOTTEN = "forgotten"


ADVICE: Final = {
    Fault.ADDED: "a second run adds again: use ctx.upsert with a key from the event, or a unique "
    "key such as event.id with `on conflict do nothing`",
    Fault.CHANGED: "a second run changes it again: write a state (`status = 'paid'`), never a "
    "difference (`x = x + 1`), or keep one row per event.id and add those up",
    Fault.REMOVED: "a second run takes more away: delete by a key from the event, and not what "
    "happens to be the next",
    Fault.RAISES: "a second run fails: use ctx.upsert, or `on conflict do nothing`",
    Fault.CALLED: 'a second run sends it again: ctx.once("name", func, ...) remembers it, and '
    "ctx.idempotency_key() as Idempotency-Key lets the callee tell",
    Fault.RACE: "two runs at once do not see each other's rows: let a unique key decide "
    "(ctx.upsert, `on conflict`), or lock the row first (`select ... for update`)",
    Fault.OVERLAP: "each run computes from rows that the other one changes: let the database add "
    "(`set x = x + $1`), lock the row before you read it (`select ... for update`), or give the "
    "handler order_by= with the path of what the two share (the customer's id)",
    Fault.LOST: "the failure ends here, and nobody sees it: let the exception out, so that the "
    "gateway runs the delivery again, or raise Retry or Reject",
    Fault.MEMORY: "what a module keeps in memory is gone in the next process, and other workers do "
    "not see it: let a unique key, ctx.once or once_per= decide what was done before",
    Fault.SHARED_KEY: "the callee takes the second for a repeat and leaves it out: give each call "
    "a key of its own, ctx.idempotency_key(name)",
    Fault.ORDER: "the last to arrive wins: give ctx.upsert a version= (event.occurred_at, or the "
    "object's updated_at), so that older state never overwrites newer",
    Fault.ESCAPE: "refused: a rehearsal can follow only what goes through ctx.http, ctx.stripe, "
    "smtplib, ctx.db or a @resource",
    Fault.FORGOTTEN: "nothing of it happens, and nothing fails: put `await` before it",
}
FIRST_WINS_ADVICE: Final = (
    "the first to arrive wins, and what comes later is lost: use ctx.upsert with a version= "
    "(event.occurred_at, or the object's updated_at), so that the newest state stays"
)
JOBS_ADVICE: Final = {
    Fault.ADDED: "a second run publishes it again: give ctx.publish a key= from the event, or none "
    "at all, which makes it one job per call and delivery",
    Fault.ORDER: "of two jobs with one key the first to arrive wins: publish only what is the same "
    "in both (an id, and let the job look up the rest), or put into key= what tells them apart "
    "(event.id)",
}
TOMBSTONE_ADVICE: Final = (
    "what was deleted cannot tell that older state comes too late: keep the row, marked as deleted "
    "and with a version"
)
ERROR_ADVICE: Final = {
    Fault.ORDER: "the older event comes last: write what each needs by itself, or raise Retry "
    "until the other one has been there",
}
UNCHECKED_ADVICE: Final = (
    "an error is taken for a success: call raise_for_status() on the answer, so that the gateway "
    "runs the delivery again"
)
OTHER_KEY_ADVICE: Final = (
    "its idempotency key is another in every run: use ctx.idempotency_key(), which is the same"
)
CLOCK_ADVICE: Final = (
    "the key is made of the clock, so that a later run has another one: take the time from the "
    "event (event.occurred_at), or use ctx.idempotency_key()"
)
OWN_RETRY_ADVICE: Final = (
    "the first call may have been received although no answer came: leave the retry to the "
    "gateway, and send ctx.idempotency_key() as Idempotency-Key"
)
BOTH_SEND_ADVICE: Final = (
    "both find that it is still to be done: lock the row before you read it (`select ... for "
    "update`), or act once per object, by @handler(..., order_by=...) or ctx.once(..., per=...)"
)
SKIPPED_ADVICE: Final = (
    'ctx.once(..., unknown="skip") returns None after a call whose outcome is unknown: go on '
    "without its result"
)
ONE_FACT_ADVICE: Final = (
    "both events tell of one payment: act once per object, by @handler(..., "
    'once_per="data.object.id") or ctx.once("name", func, ..., per=object_id)'
)
REPEATS: Final = (
    "Stripe may tell of one change in two events, and the second one does this again: {what}. If "
    'one is meant, act once per object: @handler(..., once_per="data.object.id") or '
    "ctx.once(..., per=...)"
)
COMPENSATED: Final = (
    "the delivery is done, and {tables} tells of the failure: see to it that something comes back "
    "to it, or let the exception out"
)
SKIPPED: Final = (
    'of {words} the second is skipped (once_per="{path}"): right if it is to happen once per such '
    "value"
)
KEPT: Final = (
    'of {words} the second does not call: ctx.once("{name}", per=...) has the same key for both. '
    "Right if it is to happen once per such value"
)
NOT_DONE_ADVICE: Final = (
    "the first call may have been done, so it is not known to be not done: raise NotSent, and list "
    "in not_done=, only what proves that nothing was done"
)
UNKNOWN_ADVICE: Final = (
    "may be sent twice if the worker dies during the call or its answer is lost: pass "
    'ctx.idempotency_key({name!r}) to the callee, or unknown="skip" to ctx.once'
)
BLOCKING_ADVICE: Final = (
    "blocks the worker: until it returns, no other delivery goes on and no lease is renewed; "
    "use the asynchronous form (asyncio.sleep, ctx.http), or await asyncio.to_thread(...)"
)
REPEATED_ADVICE: Final = (
    "is sent again by a second run: fine where the callee takes {method} as the standard says"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalFinding:
    """One difference, with the shortest schedule that shows it."""

    fault: Fault
    schedule: str
    event: str
    subject: str
    """The table, the call, or the error."""
    place: str | None
    source: str | None
    advice: str
    statement: str | None = None
    """The SQL statement that probably made the difference."""
    difference: Difference | None = None
    calls: tuple[ExternalCall, ...] = ()
    """Each time that the call was sent."""
    expected_calls: int = 0
    reference: str = "by a single run"
    """The reference that it is compared with."""
    error: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The key for deduplication: only the first schedule with the same finding is reported."""
        if self.error is not None:
            return "error", self.place or self.error
        return ("table" if self.difference else self.fault, self.subject)


def advise_on_rows(fault: Fault, found: Difference, *, first_wins: bool) -> str:
    """Return the advice for rows that differ."""
    if found.table == JOBS:
        return JOBS_ADVICE.get(fault, ADVICE[fault])
    if first_wins:
        return FIRST_WINS_ADVICE
    if fault is Fault.ORDER and fault_of(found) is not Fault.CHANGED:
        return TOMBSTONE_ADVICE
    return ADVICE[fault]


def advise_on_error(fault: Fault, end: End, *, is_skipped: bool) -> str:
    """Return the advice for a run that raised. With `is_skipped`, a `ctx.once` returned None."""
    if end in {End.REJECTED, End.DEFERRED}:
        return "a second run must end as the first did: return where there is nothing left to do"
    return SKIPPED_ADVICE if is_skipped else ERROR_ADVICE.get(fault, ADVICE[Fault.RAISES])


def escape_in_words(escape: Escape) -> str:
    """Describe a connection or program that the rehearsal refused."""
    if escape.is_program:
        return f"starts the program {escape.target}"
    by_library = "" if escape.place else ": a library does, in C or in a thread of its own"
    return f"reaches {escape.target} by itself, not through ctx.http{by_library}"


def writes(step: Step) -> bool:
    """Return whether the step is a statement that is meant to change something."""
    text = _LOCK.sub("", step.text)
    return step.kind is StepKind.STATEMENT and _WRITE.search(text) is not None


def fault_of(difference: Difference) -> Fault:
    """Return the fault that describes how a second run changed the rows of a table."""
    if any(change.before and change.after for change in difference.changes):
        return Fault.CHANGED
    if any(change.before for change in difference.changes):
        return Fault.REMOVED if not any(c.after for c in difference.changes) else Fault.CHANGED
    return Fault.ADDED


def place_of_error(error: BaseException | None, root: Path) -> str | None:
    """Return the innermost line of the user's code in the error's traceback."""
    frames = traceback.walk_tb(error.__traceback__) if error else ()
    places = [(Path(frame.f_code.co_filename), line) for frame, line in frames]
    theirs = [f"{file.relative_to(root)}:{line}" for file, line in places if is_users(file, root)]
    return theirs[-1] if theirs else None


def last_writer(steps: Iterable[Step], table: str) -> Step | None:
    """Return the last statement that writes and names the table, or else the last that writes."""
    statements = [step for step in steps if step.kind is StepKind.STATEMENT]
    writers = [step for step in statements if writes(step)] or statements
    name = re.escape(_LEDGER) if table == JOBS else re.escape(table.rpartition(".")[2])
    pattern = re.compile(rf"(?<!\w){name}(?!\w)", re.IGNORECASE)
    naming = [step for step in writers if pattern.search(step.text)]
    return next(reversed(naming or writers), None)


def shown_sql(step: Step) -> str | None:
    """Return the SQL, or None if it is the gateway's own."""
    return None if _LEDGER in step.text else " ".join(step.text.split())


_LEDGER: Final = "gateway.processed_events"
_LOCK: Final = re.compile(r"\bfor\s+(no\s+key\s+)?update\b", re.IGNORECASE)
_WRITE: Final = re.compile(r"\b(insert|update|delete|merge|truncate|call)\b", re.IGNORECASE)


class Verdict(StrEnum):
    """The result of rehearsing a handler: whether it is safe to run again."""

    SAFE = "safe to run again"
    """Only in the ways that were tried (`Report.tried`)."""
    IDLE = "did nothing"
    """It neither wrote nor sent anything on any event, so nothing could be tried."""
    UNSAFE = "not safe to run again"
    FAILED = "failed"
    """No single run ended as expected, so nothing could be tried."""
    SKIPPED = "not rehearsed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result for one handler on one route."""

    handler: str
    route: str
    verdict: Verdict
    reason: str | None = None
    """Why the handler failed or was not rehearsed."""
    advice: str | None = None
    """How to fix a handler that failed."""
    events: tuple[str, ...] = ()
    schedules: int = 0
    tried: Mapping[Way, int] = field(default_factory=dict)
    """How often each way to run the handler again was tried."""
    findings: tuple[RehearsalFinding, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    unguarded: tuple[str, ...] = ()
    """Imported packages that may have connected in C, because the kernel did not refuse it."""

    @property
    def not_tried(self) -> tuple[Way, ...]:
        """The ways to run the handler again that were not tried at all."""
        return tuple(way for way in Way if way not in self.tried)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON-compatible data."""
        return {
            "handler": self.handler,
            "route": self.route,
            "verdict": _name(self.verdict),
            "reason": self.reason,
            "advice": self.advice,
            "events": list(self.events),
            "schedules": self.schedules,
            "tried": {_name(way): number for way, number in self.tried.items()},
            "not_tried": [_name(way) for way in self.not_tried],
            "seconds": round(self.seconds, 2),
            "findings": [_as_json(finding) for finding in self.findings],
            "notes": list(self.notes),
            "unguarded": list(self.unguarded),
        }


def _name(value: Verdict | Way) -> str:
    return value.replace(" ", "_").replace("-", "_")


def _as_json(finding: RehearsalFinding) -> dict[str, Any]:
    return {
        "fault": finding.fault,
        "schedule": finding.schedule,
        "event": finding.event,
        "subject": finding.subject,
        "place": finding.place,
        "source": finding.source,
        "statement": finding.statement,
        "error": finding.error,
        "rows": [
            {"expected": change.before, "found": change.after}
            for change in (finding.difference.changes if finding.difference else ())
        ],
        "calls": [{"call": call.text, "content": call.content} for call in finding.calls],
        "calls_expected": finding.expected_calls,
        "advice": finding.advice,
    }


def without_secrets_in(report: Report) -> Report:
    """Return the report with the secrets removed from every text: rows, SQL, errors, code."""
    shown: Report = _redacted(report)
    return shown


def _redacted(value: Any) -> Any:
    match value:
        case Enum():
            return value
        case str():
            return without_secrets(value)
        case Mapping():
            return {_redacted(key): _redacted(part) for key, part in value.items()}
        case tuple() | list():
            return type(value)(_redacted(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _redacted(getattr(value, f.name)) for f in fields(value)})
    return value
