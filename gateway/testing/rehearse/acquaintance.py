"""Gets to know a handler: on which events a single run ends as it should, and what of it counts."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.testing.rehearse.events import Occasion
from gateway.testing.rehearse.failures import advise
from gateway.testing.rehearse.findings import Situation, of_forgotten, place_of_error, writes
from gateway.testing.rehearse.judge import Judge, Standard, choose_grouping
from gateway.testing.rehearse.made_up import needs_rows, wanted_rows
from gateway.testing.rehearse.schedules import Schedules, Trial
from gateway.testing.rehearse.stage import End, Performance, Stage
from gateway.testing.rehearse.tables import compare, learn

SEED_HINT: Final = "give it one with --seed FILE, SQL that is run before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An event on which the handler ends as it should when run once."""

    occasion: Occasion
    standard: Standard
    is_idle: bool = False
    """Whether the handler returned without having written or sent anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An event on which the handler fails."""

    label: str
    told: str
    advice: str


class Acquaintance:
    """Single runs of one handler."""

    def __init__(self, stage: Stage, schedules: Schedules, judge: Judge) -> None:
        self._stage = stage
        self._schedules = schedules
        self._judge = judge
        self._met: dict[tuple[str | None, str], bool] = {}
        """By place and text of each statement that needs a row: whether it ever met one."""
        self.failures: list[Failure] = []

    async def make(self, occasions: Sequence[Occasion]) -> list[Known]:
        """Those that it can be tried on; each also with made-up rows, where it looked for some."""
        found: list[Known] = []
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

    async def _know(self, occasion: Occasion, trial: Trial) -> Known:
        """Runs it once more in another database, which shows what of it says nothing: times, ids,
        numbers."""
        [performance] = trial.performances
        if performance.end is not End.DONE:
            self._judge.note(f"on {occasion.label}: {performance.error}")
        situation = Situation(schedule=trial.words, event=occasion.label, root=self._judge.root)
        for forgotten in performance.run.forgotten:
            self._judge.add(of_forgotten(situation, forgotten))
        other = await self._schedules.once(occasion, is_skewed=True)
        masks = learn(self._stage.tables, trial.state, other.state)
        standard = Standard(trial=trial, masks=masks, group=choose_grouping(trial, other))
        return Known(occasion=occasion, standard=standard, is_idle=self._is_idle(occasion, trial))

    def _is_idle(self, occasion: Occasion, trial: Trial) -> bool:
        [performance] = trial.performances
        if performance.end is not End.DONE or not _only_looks(performance):
            return False
        pristine = self._stage.pristine  # a function that is selected may write, too
        return bool(occasion.rows) or not compare(self._stage.tables, pristine, trial.state, {})

    async def _make_richer(
        self, occasion: Occasion, performance: Performance
    ) -> AsyncIterator[Known]:
        """With rows for which the handler looked in vain, one more at a time."""
        richer = await self._make_up(occasion, performance)
        while richer is not None:
            trial = await self._schedules.once(richer)
            [performance] = trial.performances
            if _is_by_choice(performance):
                yield await self._know(richer, trial)
            richer = await self._make_up(richer, performance)

    async def _make_up(self, occasion: Occasion, performance: Performance) -> Occasion | None:
        """The same event on a database that has a row for which the handler looked in vain."""
        steps = performance.run.steps
        for step in filter(needs_rows, steps):
            key = step.place, step.text
            self._met[key] = self._met.get(key, False) or bool(step.rows)
        for row in wanted_rows(steps, self._stage.tables):
            richer = occasion.with_row(row)
            if richer is not None and await self._stage.accepts(richer.rows):
                return richer
        return None

    def _failure(self, occasion: Occasion, performance: Performance) -> Failure:
        place = place_of_error(performance.raised, self._judge.root)
        told = f"{performance.error}" + (f" ({place})" if place else "")
        return Failure(label=occasion.label, told=told, advice=advise(performance))


def _only_looks(performance: Performance) -> bool:
    """Whether the run neither sent anything nor tried to change a row."""
    run = performance.run
    return not any(call.is_write for call in run.calls) and not any(map(writes, run.steps))


def _is_by_choice(performance: Performance) -> bool:
    """Whether the handler returned, or said by itself what is to become of the delivery."""
    return performance.end in {End.DONE, End.REJECTED, End.DEFERRED}
