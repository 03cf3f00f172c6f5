"""Find the events on which a single run of a handler ends as expected, and advise on the others."""

import os
import re
import traceback
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from gateway.base.errors import causes
from gateway.testing.rehearse.checks import ReferenceRun, ResultChecker, choose_grouping
from gateway.testing.rehearse.database import compare, learn
from gateway.testing.rehearse.events import RehearsedEvent, invent_rows, needs_rows
from gateway.testing.rehearse.findings import Fault, place_of_error, writes
from gateway.testing.rehearse.sandbox import End, EndedRun, Sandbox
from gateway.testing.rehearse.schedules import Schedules, Trial
from gateway.testing.rehearse.trace import Step, StepKind

EVENT_ADVICE: Final = (
    "record an event on which it works with `gateway show ID --save FILE` and pass --event FILE"
)
ANSWERS_ADVICE: Final = (
    "{request} has got an answer that is made up here: say what it is answered with by --answers "
    "FILE; where it is the event that is wanting, {event}"
)
TYPES_ADVICE: Final = (
    "pass a value of the type that the column has: a datetime for timestamptz (event.occurred_at), "
    "an int for bigint, a str for text"
)
TRANSACTION_ADVICE: Final = (
    "an earlier statement failed and was caught, which ends the transaction: put it into "
    "`async with ctx.db.transaction():`, so that only it is undone"
)
ROW_ADVICE: Final = "give it the row that it refers to with --seed FILE, SQL that inserts it"
TABLE_ADVICE: Final = "create it in one of the files that `schema:` in routes.yaml names"

_COLUMN: Final = re.compile(r'column "(\w+)" of relation "(\w+)" does not exist')
_NEEDS_INDEX: Final = re.compile(r"ctx\.upsert\('([\w.]+)'\) needs a unique index on \((.+?)\)")
_CONFLICT: Final = re.compile(
    r'\binto\s+([\w."]+).*?\bon\s+conflict\s*\(([^)]*)\)', re.IGNORECASE | re.DOTALL
)
_OF_ANSWERS: Final = (LookupError, AttributeError, TypeError, ValueError)


def advise(ended: EndedRun) -> str:
    """Return the advice for a failed run."""
    error = ended.raised
    if error is None:
        return EVENT_ADVICE
    for cause in causes(error):
        if advice := _advise_on_database(cause, ended):
            return advice
    if variable := _missing_variable(error):
        return f"set the environment variable {variable}: any value will do"
    if isinstance(error, _OF_ANSWERS) and ended.run.invented:
        request = ended.run.invented[-1]
        return ANSWERS_ADVICE.format(request=request, event=EVENT_ADVICE)
    return EVENT_ADVICE


def _advise_on_database(error: BaseException, ended: EndedRun) -> str | None:
    match error:
        case asyncpg.UndefinedColumnError():
            return _column_advice(str(error))
        case asyncpg.UndefinedTableError():
            return TABLE_ADVICE
        case asyncpg.InvalidColumnReferenceError():
            return _index_advice(ended)
        case asyncpg.ForeignKeyViolationError():
            return ROW_ADVICE
        case asyncpg.InFailedSQLTransactionError():
            return TRANSACTION_ADVICE
        case asyncpg.DataError():
            return TYPES_ADVICE
    return None


def _column_advice(message: str) -> str:
    found = _COLUMN.search(message)
    if found is None:
        return "the schema has no such column: add it, or name the one that is there"
    column, table = found.groups()
    if column == "version":
        return (
            "ctx.upsert keeps version= in a column of that name: add it to your schema, for times "
            f"`alter table {table} add column version timestamptz`, for numbers as bigint"
        )
    return f"add it to your schema: `alter table {table} add column {column} ...`"


def _index_advice(ended: EndedRun) -> str:
    found = _NEEDS_INDEX.search(ended.error or "")
    for step in ended.run.steps:
        if found is None and step.error is not None:
            found = _CONFLICT.search(step.text)
    if found is None:
        return "`on conflict` needs a unique index on the columns that it names"
    return f"add it to your schema: `create unique index on {found[1]} ({found[2]})`"


def _missing_variable(error: BaseException) -> str | None:
    """Return the name of the missing variable if `os.environ` itself raised the error, or None."""
    if not isinstance(error, KeyError):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_environ = bool(frames) and frames[-1].f_code is type(os.environ).__getitem__.__code__
    return str(error.args[0]) if is_environ and error.args else None


TWICE_ANEW: Final = "run once, then once more in a new database"
LEFT_OUT: Final = "leaves out what it did before, though its tables are as at first"
SEED_HINT: Final = "give it one with --seed FILE, SQL that is run before"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEvent:
    """An event on which a single run of the handler ends as expected."""

    event: RehearsedEvent
    reference: ReferenceRun
    is_idle: bool = False
    """Whether the handler returned without writing or sending anything."""

    @property
    def ended(self) -> EndedRun:
        """The single run."""
        return self.reference.trial.runs[0]

    @property
    def is_busy(self) -> bool:
        """Whether the handler returned, and wrote or sent something."""
        return self.ended.end is End.DONE and not self.is_idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An event on which the handler fails."""

    label: str
    message: str
    advice: str


class SingleRuns:
    """Runs one handler once on each event, as the reference for all other schedules."""

    def __init__(self, sandbox: Sandbox, schedules: Schedules, checks: ResultChecker) -> None:
        self._sandbox = sandbox
        self._schedules = schedules
        self._checks = checks
        self._met: dict[tuple[str | None, str], bool] = {}
        """By place and text of each statement that needs a row: whether it ever found one."""
        self.failures: list[Failure] = []

    async def make(self, events: Sequence[RehearsedEvent]) -> list[KnownEvent]:
        """Return the events on which the handler can be tried.

        If the handler looked for rows and found none, the event is also tried with invented rows.
        """
        found: list[KnownEvent] = []
        for event in events:
            trial = await self._schedules.once(event)
            [ended] = trial.runs
            known = [await self._know(event, trial)] if _is_by_choice(ended) else []
            known += [richer async for richer in self._with_rows(event, ended)]
            if not known:
                self.failures.append(self._failure(event, ended))
            found += known
            if ended.end is End.LATE:
                break
        for (place, _), has_met in self._met.items():
            if not has_met:
                self._checks.note(f"the statement at {place} never met a row: {SEED_HINT}")
        return found

    async def _know(self, event: RehearsedEvent, trial: Trial) -> KnownEvent:
        """Run the event once more in another database.

        The differences show which values to ignore: times, ids, numbers.
        """
        [ended] = trial.runs
        if ended.end is not End.DONE:
            self._checks.note(f"on {event.label}: {ended.error}")
        for forgotten in ended.run.forgotten:
            subject = f"{forgotten.name}(...) is never awaited"
            self._checks.add(trial.words, event.label, Fault.FORGOTTEN, subject, forgotten.place)
        other = await self._schedules.once(event, is_skewed=True)
        self._checks.check_keys(trial)
        [again] = other.runs
        left_out = [] if any(_actions(again)) else [*_actions(ended)]
        if left_out and ended.end is again.end is End.DONE:
            self._checks.add(TWICE_ANEW, event.label, Fault.MEMORY, LEFT_OUT, left_out[0].place)
        masks = learn(self._sandbox.database.tables, trial.state, other.state)
        group = choose_grouping(trial, other)
        reference = ReferenceRun(trial=trial, again=other, masks=masks, group=group)
        return KnownEvent(event=event, reference=reference, is_idle=self._is_idle(event, trial))

    def _is_idle(self, event: RehearsedEvent, trial: Trial) -> bool:
        [ended] = trial.runs
        if ended.end is not End.DONE or not _only_looks(ended):
            return False
        initial = self._sandbox.database.initial  # a function called in a select may also write
        return bool(event.rows) or not compare(
            self._sandbox.database.tables, initial, trial.state, {}
        )

    async def _with_rows(self, event: RehearsedEvent, ended: EndedRun) -> AsyncIterator[KnownEvent]:
        """Yield the event with invented rows that the handler looked for, adding one at a time."""
        richer = await self._invent_row(event, ended)
        while richer is not None:
            trial = await self._schedules.once(richer)
            [ended] = trial.runs
            if _is_by_choice(ended):
                yield await self._know(richer, trial)
            richer = await self._invent_row(richer, ended)

    async def _invent_row(self, event: RehearsedEvent, ended: EndedRun) -> RehearsedEvent | None:
        """Return the event with one more row that the handler did not find, or None."""
        steps = ended.run.steps
        for step in filter(needs_rows, steps):
            key = step.place, step.text
            self._met[key] = self._met.get(key, False) or bool(step.rows)
        for row in invent_rows(steps, self._sandbox.database.tables):
            richer = event.with_row(row)
            if richer is not None and await self._sandbox.accepts(richer.rows):
                return richer
        return None

    def _failure(self, event: RehearsedEvent, ended: EndedRun) -> Failure:
        place = place_of_error(ended.raised, self._checks.root)
        message = f"{ended.error}" + (f" ({place})" if place else "")
        return Failure(label=event.label, message=message, advice=advise(ended))


def _only_looks(ended: EndedRun) -> bool:
    """Return whether the run neither sent anything nor tried to change a row."""
    run = ended.run
    return not any(call.is_write for call in run.calls) and not any(map(writes, run.steps))


def _actions(ended: EndedRun) -> Iterator[Step]:
    """Yield the steps that write or send something."""
    sent = {call.place for call in ended.run.calls if call.is_write}
    for step in ended.run.steps:
        if writes(step) or (step.kind is StepKind.CALL and step.place in sent):
            yield step


def _is_by_choice(ended: EndedRun) -> bool:
    """Return whether the handler returned, or decided the outcome itself (Reject, Retry, Defer)."""
    return ended.end in {End.DONE, End.REJECTED, End.DEFERRED}
