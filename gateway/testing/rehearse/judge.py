"""Compares what came of a schedule with what came of a single run."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.testing.rehearse.findings import (
    REPEATED_ADVICE,
    UNKNOWN_ADVICE,
    Fault,
    Finding,
    Situation,
    fault_of,
    of_calls,
    of_error,
    of_table,
)
from gateway.testing.rehearse.schedules import Trial
from gateway.testing.rehearse.stage import End
from gateway.testing.rehearse.tables import Difference, Masks, Table, compare, masked
from gateway.testing.rehearse.trace import ExternalCall, Step

Grouping = Callable[[ExternalCall], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """A single run (or two events in their order), and what of it counts."""

    trial: Trial
    masks: Masks
    group: Grouping


@dataclass(slots=True, kw_only=True)
class Judge:
    """Collects what is found, each thing once."""

    root: Path
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """What was found first was found by the shorter schedule."""
        self.findings.setdefault(finding.key, finding)

    def note(self, text: str, about: str | None = None) -> None:
        """Something that is no finding; of what it is about, only once."""
        self.notes.setdefault(about or text, text)

    def weigh(
        self,
        tables: Sequence[Table],
        standard: Standard,
        trial: Trial,
        event: str,
        fault: Fault | None = None,
        *,
        is_one_time: bool = False,
    ) -> None:
        """Adds whatever ends differently. `fault` is that of rows that do, where the schedule says
        more of it than the rows. With `is_one_time`, the first of two events may win."""
        situation = Situation(schedule=trial.words, event=event, root=self.root)
        self._weigh_ends(standard, trial, situation, fault)
        steps = list(_steps(trial))
        for found in compare(tables, standard.trial.state, trial.state, standard.masks):
            first_wins = _first_wins(standard, trial, found)
            if not (first_wins and is_one_time):
                self.add(
                    of_table(
                        situation, fault or fault_of(found), found, steps, first_wins=first_wins
                    )
                )
        self._weigh_calls(standard, trial, situation)

    def _weigh_ends(
        self, standard: Standard, trial: Trial, situation: Situation, fault: Fault | None
    ) -> None:
        expected = {performance.end for performance in standard.trial.last}
        for performance in trial.last:
            if performance.end not in {*expected, End.DONE, End.LOST, End.KILLED}:
                self.add(of_error(situation, fault or Fault.RAISES, performance))

    def _weigh_calls(self, standard: Standard, trial: Trial, situation: Situation) -> None:
        expected = _grouped(_calls(standard.trial), standard.group)
        for group, calls in _grouped(_calls(trial), standard.group).items():
            before = expected.get(group, [])
            if _told_apart(calls) <= _told_apart(before):
                self._note_repeats(calls, before)
            elif _told_apart(_unforgiven(calls, trial)) <= _told_apart(before):
                self._note_unknown(calls)
            else:
                self.add(of_calls(situation, calls, len(before)))

    def _note_unknown(self, calls: Sequence[ExternalCall]) -> None:
        last = calls[-1]
        if last.once is not None:
            advice = UNKNOWN_ADVICE.format(name=last.once.name)
            self.note(f"{last.text} ({last.place}) {advice}", f"unknown {last.place}")

    def _note_repeats(self, calls: Sequence[ExternalCall], before: Sequence[ExternalCall]) -> None:
        last = calls[-1]
        if last.is_repeatable and last.key is None and len(calls) > len(before):
            method = last.text.partition(" ")[0]
            advice = REPEATED_ADVICE.format(method=method)
            self.note(f"{last.text} ({last.place}) {advice}", f"{method} {last.place}")


def _first_wins(standard: Standard, trial: Trial, found: Difference) -> bool:
    """Whether in either order each row that differs was left as the first event made it."""
    in_order, in_reverse = standard.trial.first_state, trial.first_state
    if in_order is None or in_reverse is None:
        return False
    mask = standard.masks.get(found.table, frozenset())
    older, newer = (masked(state[found.table], mask) for state in (in_order, in_reverse))
    return all(change.before in older and change.after in newer for change in found.changes)


def choose_grouping(one: Trial, other: Trial) -> Grouping:
    """Calls are the same by what they say; where that differs from run to run, by their line."""
    texts = [sorted(call.text for call in _calls(trial)) for trial in (one, other)]
    return by_text if texts[0] == texts[1] else by_place


def by_text(call: ExternalCall) -> str:
    """Where every run says the same."""
    return call.text


def by_place(call: ExternalCall) -> str:
    """Where every run says something else."""
    return call.place or call.text.partition(" ")[0]


def _calls(trial: Trial) -> Iterator[ExternalCall]:
    for performance in trial.performances:
        yield from (call for call in performance.run.calls if call.is_write)


def _steps(trial: Trial) -> Iterator[Step]:
    for performance in trial.performances:
        yield from performance.run.steps


def _grouped(calls: Iterable[ExternalCall], group: Grouping) -> Mapping[str, list[ExternalCall]]:
    found: defaultdict[str, list[ExternalCall]] = defaultdict(list)
    for call in calls:
        found[group(call)].append(call)
    return found


def _told_apart(calls: Sequence[ExternalCall]) -> int:
    """How many the callee sees: those with one key are one, and so are repeats of a PUT."""
    keys = {call.key for call in calls if call.key is not None}
    others = [call for call in calls if call.key is None]
    repeats = {call.content for call in others if call.is_repeatable}
    return len(keys) + len(repeats) + sum(not call.is_repeatable for call in others)


def _unforgiven(calls: Sequence[ExternalCall], trial: Trial) -> list[ExternalCall]:
    """Without those of a run that was killed during their `ctx.once`, where a later run said them
    again under its name: whether they had arrived could not be known."""
    killed = [p.run for p in trial.performances if p.end is End.KILLED and p.run.steps]
    others = [p.run for p in trial.performances if p.end is not End.KILLED]
    again = {call.once for run in others for call in run.calls}
    forgiven = [
        call
        for run in killed
        for call in run.calls
        if call.once is not None and call.once == run.steps[-1].once and call.once in again
    ]
    return [call for call in calls if not any(call is other for other in forgiven)]
