"""Find the events on which a single run of a handler ends as expected, and what to compare."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.testing.rehearse.events import RehearsedEvent
from gateway.testing.rehearse.failures import advise
from gateway.testing.rehearse.findings import (
    Situation,
    of_forgotten,
    of_memory,
    place_of_error,
    writes,
)
from gateway.testing.rehearse.judge import Judge, ReferenceRun, choose_grouping
from gateway.testing.rehearse.made_up import needs_rows, wanted_rows
from gateway.testing.rehearse.schedules import Schedules, Trial
from gateway.testing.rehearse.stage import End, EndedRun, RehearsalStage
from gateway.testing.rehearse.tables import compare, learn
from gateway.testing.rehearse.trace import Step, StepKind

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
