"""What a schedule shows of a handler: where it ends differently, at which line, and what helps."""

import re
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from gateway.testing.places import is_users
from gateway.testing.rehearse.guard import Escape
from gateway.testing.rehearse.stage import End, Performance
from gateway.testing.rehearse.tables import JOBS, Difference
from gateway.testing.rehearse.trace import ExternalCall, Forgotten, Kind, Step, source_line


class Fault(StrEnum):
    """In what way a body cannot stand to be run twice."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    RAISES = "raises"
    CALLED = "called"
    RACE = "race"
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
UNKNOWN_ADVICE: Final = (
    "may be sent twice if the worker dies during the call: pass ctx.idempotency_key({name!r}) to "
    'the callee, or unknown="skip" to ctx.once'
)
REPEATED_ADVICE: Final = (
    "is sent again by a second run: fine where the callee takes {method} as the standard says"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that ends differently, by the shortest schedule that shows it."""

    fault: Fault
    schedule: str
    event: str
    subject: str
    """The table, the call, or the error."""
    place: str | None
    source: str | None
    advice: str
    statement: str | None = None
    """The SQL that is thought to have made the difference."""
    difference: Difference | None = None
    calls: tuple[ExternalCall, ...] = ()
    """Every time that it was sent."""
    expected_calls: int = 0
    error: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Another schedule that shows the same is not worth telling."""
        if self.error is not None:
            return "error", self.place or self.error
        return ("table" if self.difference else self.fault, self.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What was tried when something was found."""

    schedule: str
    event: str
    root: Path


def of_table(
    situation: Situation,
    fault: Fault,
    found: Difference,
    steps: Sequence[Step],
    *,
    first_wins: bool = False,
) -> Finding:
    """Rows that differ."""
    step = _last_writer(steps, found.table)
    place = step.place if step else None
    advice = ADVICE[fault]
    if found.table == JOBS:
        advice = JOBS_ADVICE.get(fault, advice)
    elif first_wins:
        advice = FIRST_WINS_ADVICE
    elif fault is Fault.ORDER and fault_of(found) is not Fault.CHANGED:
        advice = TOMBSTONE_ADVICE
    return Finding(
        fault=fault,
        schedule=situation.schedule,
        event=situation.event,
        subject=found.table,
        place=place,
        source=source_line(situation.root, place),
        advice=advice,
        statement=_shown(step) if step else None,
        difference=found,
    )


def of_error(situation: Situation, fault: Fault, performance: Performance) -> Finding:
    """A run that raised, and was not to."""
    place = place_of_error(performance.raised, situation.root)
    advice = ERROR_ADVICE.get(fault, ADVICE[Fault.RAISES])
    if performance.end in {End.REJECTED, End.DEFERRED}:
        advice = "a second run must end as the first did: return where there is nothing left to do"
    return Finding(
        fault=fault,
        schedule=situation.schedule,
        event=situation.event,
        subject=performance.error or performance.end,
        place=place,
        source=source_line(situation.root, place),
        advice=advice,
        error=performance.error,
    )


def of_calls(situation: Situation, calls: Sequence[ExternalCall], expected: int) -> Finding:
    """Something that was sent more often than by a single run."""
    last = calls[-1]
    advice = ADVICE[Fault.CALLED]
    if last.key is not None:
        advice = (
            "its idempotency key is another in every run: use ctx.idempotency_key(), "
            "which is the same"
        )
    return Finding(
        fault=Fault.CALLED,
        schedule=situation.schedule,
        event=situation.event,
        subject=last.text,
        place=last.place,
        source=source_line(situation.root, last.place),
        advice=advice,
        calls=tuple(calls),
        expected_calls=expected,
    )


def of_escape(situation: Situation, escape: Escape) -> Finding:
    """A way out that the rehearsal had to close."""
    told = f"reaches {escape.target} by itself, not through ctx.http"
    if escape.is_program:
        told = f"starts the program {escape.target}"
    return Finding(
        fault=Fault.ESCAPE,
        schedule=situation.schedule,
        event=situation.event,
        subject=told,
        place=escape.place,
        source=source_line(situation.root, escape.place),
        advice=ADVICE[Fault.ESCAPE],
    )


def of_forgotten(situation: Situation, forgotten: Forgotten) -> Finding:
    """A coroutine that nobody awaited."""
    return Finding(
        fault=Fault.FORGOTTEN,
        schedule=situation.schedule,
        event=situation.event,
        subject=f"{forgotten.name}(...) is never awaited",
        place=forgotten.place,
        source=source_line(situation.root, forgotten.place),
        advice=ADVICE[Fault.FORGOTTEN],
    )


def writes(step: Step) -> bool:
    """Whether it is a statement that is there to change something."""
    text = _LOCK.sub("", step.text)
    return step.kind is Kind.STATEMENT and _WRITE.search(text) is not None


def fault_of(difference: Difference) -> Fault:
    """What a second run did to the rows of a table."""
    if any(change.before and change.after for change in difference.changes):
        return Fault.CHANGED
    if any(change.before for change in difference.changes):
        return Fault.REMOVED if not any(c.after for c in difference.changes) else Fault.CHANGED
    return Fault.ADDED


def place_of_error(error: BaseException | None, root: Path) -> str | None:
    """The innermost line of the user's that it went through."""
    frames = traceback.walk_tb(error.__traceback__) if error else ()
    places = [(Path(frame.f_code.co_filename), line) for frame, line in frames]
    theirs = [f"{file.relative_to(root)}:{line}" for file, line in places if is_users(file, root)]
    return theirs[-1] if theirs else None


def _last_writer(steps: Iterable[Step], table: str) -> Step | None:
    """The last statement that writes and names the table; else the last that writes."""
    statements = [step for step in steps if step.kind is Kind.STATEMENT]
    writers = [step for step in statements if writes(step)] or statements
    name = re.escape(_LEDGER) if table == JOBS else re.escape(table.rpartition(".")[2])
    pattern = re.compile(rf"(?<!\w){name}(?!\w)", re.IGNORECASE)
    naming = [step for step in writers if pattern.search(step.text)]
    return next(reversed(naming or writers), None)


def _shown(step: Step) -> str | None:
    """The SQL, unless it is our own."""
    return None if _LEDGER in step.text else " ".join(step.text.split())


_LEDGER: Final = "gateway.processed_events"
_LOCK: Final = re.compile(r"\bfor\s+(no\s+key\s+)?update\b", re.IGNORECASE)
_WRITE: Final = re.compile(r"\b(insert|update|delete|merge|truncate|call)\b", re.IGNORECASE)
