"""Gets to know a handler: on which events a single run ends as it should, and what of it counts."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.testing.rehearse.events import Occasion
from gateway.testing.rehearse.findings import place_of_error
from gateway.testing.rehearse.judge import Judge, Standard, choose_grouping
from gateway.testing.rehearse.made_up import changes_nothing, updates_nothing, wanted_rows
from gateway.testing.rehearse.schedules import Schedules, Trial
from gateway.testing.rehearse.stage import End, Performance, Stage
from gateway.testing.rehearse.tables import learn
from gateway.testing.rehearse.trace import Kind

SEED_HINT: Final = "give it one with --seed FILE, SQL that is run before"
ANSWER_HINT: Final = (
    "requests are answered with what the event or a sample tells of the object, or {}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An event on which the handler ends as it should when run once."""

    occasion: Occasion
    standard: Standard


class Acquaintance:
    """Single runs of one handler."""

    def __init__(self, stage: Stage, schedules: Schedules, judge: Judge) -> None:
        self._stage = stage
        self._schedules = schedules
        self._judge = judge
        self.failures: list[str] = []
        """On what the handler fails, and how."""

    async def make(self, occasions: Sequence[Occasion]) -> list[Known]:
        """Those that it can be tried on; each also with made-up rows, where it looked for some."""
        found: list[Known] = []
        for occasion in occasions:
            trial = await self._schedules.once(occasion)
            [performance] = trial.performances
            known = [await self._know(occasion, trial)] if _is_by_choice(performance) else []
            known += [richer async for richer in self._make_richer(occasion, performance)]
            if not known:
                self.failures.append(f"fails on {occasion.label}: {self._told(performance)}")
            found += known
            if performance.end is End.LATE:
                break
        return found

    async def _know(self, occasion: Occasion, trial: Trial) -> Known:
        """Runs it once more in another database, which shows what of it says nothing: times, ids,
        numbers."""
        [performance] = trial.performances
        if performance.end is not End.DONE:
            self._judge.note(f"on {occasion.label}: {performance.error}")
        other = await self._schedules.once(occasion, is_skewed=True)
        masks = learn(self._stage.tables, trial.state, other.state)
        standard = Standard(trial=trial, masks=masks, group=choose_grouping(trial, other))
        return Known(occasion=occasion, standard=standard)

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
        """The same event on a database that has a row for which the handler looked in vain.

        A row that was only to be read is made up where the handler could not do without.
        """
        steps = performance.run.steps
        if performance.end is End.DONE and not changes_nothing(steps):
            return None
        for row in wanted_rows(steps, self._stage.tables):
            richer = occasion.with_row(row)
            if richer is not None and await self._stage.accepts(richer.rows):
                return richer
        for step in updates_nothing(steps):
            self._judge.note(f"the statement at {step.place} found no row to change: {SEED_HINT}")
        return None

    def _told(self, performance: Performance) -> str:
        place = place_of_error(performance.raised, self._judge.root)
        told = f"{performance.error}" + (f" ({place})" if place else "")
        if any(step.kind is Kind.CALL for step in performance.run.steps):
            told += f"; {ANSWER_HINT}"
        return told


def _is_by_choice(performance: Performance) -> bool:
    """Whether the handler returned, or said by itself what is to become of the delivery."""
    return performance.end in {End.DONE, End.REJECTED, End.DEFERRED}
