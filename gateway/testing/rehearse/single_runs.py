"""Find the events on which a single run of a handler ends as expected, and advise on the others."""

import os
import re
import traceback
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import asyncpg

from gateway.base.errors import causes
from gateway.testing.rehearse.database import compare, learn
from gateway.testing.rehearse.events import RehearsedEvent, needs_rows, wanted_rows
from gateway.testing.rehearse.findings import (
    Situation,
    of_forgotten,
    of_memory,
    place_of_error,
    writes,
)
from gateway.testing.rehearse.judge import Judge, ReferenceRun, choose_grouping
from gateway.testing.rehearse.sandbox import End, EndedRun, RehearsalStage
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


def advise(performance: EndedRun) -> str:
    """Return the advice for a failed run."""
    error = performance.raised
    if error is None:
        return EVENT_ADVICE
    for cause in causes(error):
        if advice := _advise_on_database(cause, performance):
            return advice
    if variable := _missing_variable(error):
        return f"set the environment variable {variable}: any value will do"
    if isinstance(error, _OF_ANSWERS) and performance.run.invented:
        request = performance.run.invented[-1]
        return ANSWERS_ADVICE.format(request=request, event=EVENT_ADVICE)
    return EVENT_ADVICE


def _advise_on_database(error: BaseException, performance: EndedRun) -> str | None:
    match error:
        case asyncpg.UndefinedColumnError():
            return _column_advice(str(error))
        case asyncpg.UndefinedTableError():
            return TABLE_ADVICE
        case asyncpg.InvalidColumnReferenceError():
            return _index_advice(performance)
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


def _index_advice(performance: EndedRun) -> str:
    found = _NEEDS_INDEX.search(performance.error or "")
    for step in performance.run.steps:
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


SEED_HINT: Final = "give it one with --seed FILE, SQL that is run before"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHandler:
    """An event on which a single run of the handler ends as expected."""

    occasion: RehearsedEvent
    standard: ReferenceRun
    is_idle: bool = False
    """Whether the handler returned without writing or sending anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An event on which the handler fails."""

    label: str
    told: str
    advice: str


class SingleRuns:
    """Runs one handler once on each event, as the reference for all other schedules."""

    def __init__(self, stage: RehearsalStage, schedules: Schedules, judge: Judge) -> None:
        self._stage = stage
        self._schedules = schedules
        self._judge = judge
        self._met: dict[tuple[str | None, str], bool] = {}
        """By place and text of each statement that needs a row: whether it ever found one."""
        self.failures: list[Failure] = []

    async def make(self, occasions: Sequence[RehearsedEvent]) -> list[KnownHandler]:
        """Return the events on which the handler can be tried.

        If the handler looked for rows and found none, the event is also tried with invented rows.
        """
        found: list[KnownHandler] = []
        for occasion in occasions:
            trial = await self._schedules.once(occasion)
            [performance] = trial.performances
            known = [await self._know(occasion, trial)] if _is_by_choice(performance) else []
            known += [richer async for richer in self._make_richer(occasion, performance)]
            if not known:
                self.failures.append(self._failure(occasion, performance))
            found += known
            if performance.end is End.LATE:
                break
        for (place, _), has_met in self._met.items():
            if not has_met:
                self._judge.note(f"the statement at {place} never met a row: {SEED_HINT}")
        return found

    async def _know(self, occasion: RehearsedEvent, trial: Trial) -> KnownHandler:
        """Run the event once more in another database.

        The differences show which values to ignore: times, ids, numbers.
        """
        [performance] = trial.performances
        if performance.end is not End.DONE:
            self._judge.note(f"on {occasion.label}: {performance.error}")
        situation = Situation(schedule=trial.words, event=occasion.label, root=self._judge.root)
        for forgotten in performance.run.forgotten:
            self._judge.add(of_forgotten(situation, forgotten))
        other = await self._schedules.once(occasion, is_skewed=True)
        self._judge.weigh_keys(trial, occasion.label)
        [again] = other.performances
        if performance.end is again.end is End.DONE:
            situation = replace(situation, schedule="run once, then once more in a new database")
            if deeds := [] if any(_deeds(again)) else [*_deeds(performance)]:
                self._judge.add(of_memory(situation, deeds[0]))
        masks = learn(self._stage.tables, trial.state, other.state)
        group = choose_grouping(trial, other)
        standard = ReferenceRun(trial=trial, again=other, masks=masks, group=group)
        return KnownHandler(
            occasion=occasion, standard=standard, is_idle=self._is_idle(occasion, trial)
        )

    def _is_idle(self, occasion: RehearsedEvent, trial: Trial) -> bool:
        [performance] = trial.performances
        if performance.end is not End.DONE or not _only_looks(performance):
            return False
        pristine = self._stage.pristine  # a function called in a select may also write
        return bool(occasion.rows) or not compare(self._stage.tables, pristine, trial.state, {})

    async def _make_richer(
        self, occasion: RehearsedEvent, performance: EndedRun
    ) -> AsyncIterator[KnownHandler]:
        """Yield the event with invented rows that the handler looked for, adding one at a time."""
        richer = await self._make_up(occasion, performance)
        while richer is not None:
            trial = await self._schedules.once(richer)
            [performance] = trial.performances
            if _is_by_choice(performance):
                yield await self._know(richer, trial)
            richer = await self._make_up(richer, performance)

    async def _make_up(
        self, occasion: RehearsedEvent, performance: EndedRun
    ) -> RehearsedEvent | None:
        """Return the event with one more row that the handler did not find, or None."""
        steps = performance.run.steps
        for step in filter(needs_rows, steps):
            key = step.place, step.text
            self._met[key] = self._met.get(key, False) or bool(step.rows)
        for row in wanted_rows(steps, self._stage.tables):
            richer = occasion.with_row(row)
            if richer is not None and await self._stage.accepts(richer.rows):
                return richer
        return None

    def _failure(self, occasion: RehearsedEvent, performance: EndedRun) -> Failure:
        place = place_of_error(performance.raised, self._judge.root)
        told = f"{performance.error}" + (f" ({place})" if place else "")
        return Failure(label=occasion.label, told=told, advice=advise(performance))


def _only_looks(performance: EndedRun) -> bool:
    """Return whether the run neither sent anything nor tried to change a row."""
    run = performance.run
    return not any(call.is_write for call in run.calls) and not any(map(writes, run.steps))


def _deeds(performance: EndedRun) -> Iterator[Step]:
    """Yield the steps that write or send something."""
    sent = {call.place for call in performance.run.calls if call.is_write}
    for step in performance.run.steps:
        if writes(step) or (step.kind is StepKind.CALL and step.place in sent):
            yield step


def _is_by_choice(performance: EndedRun) -> bool:
    """Return whether the handler returned, or decided the outcome itself (Reject, Retry, Defer)."""
    return performance.end in {End.DONE, End.REJECTED, End.DEFERRED}
