"""Compare the result of a schedule with the result of a single run."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.testing.rehearse.database import (
    JOBS,
    Change,
    Difference,
    Masks,
    Table,
    compare,
    learn,
    masked,
)
from gateway.testing.rehearse.findings import (
    ADVICE,
    BOTH_SEND_ADVICE,
    CLOCK_ADVICE,
    COMPENSATED,
    NOT_DONE_ADVICE,
    ONE_FACT_ADVICE,
    OTHER_KEY_ADVICE,
    OWN_RETRY_ADVICE,
    REPEATED_ADVICE,
    UNCHECKED_ADVICE,
    UNKNOWN_ADVICE,
    Fault,
    RehearsalFinding,
    advise_on_error,
    advise_on_rows,
    fault_of,
    last_writer,
    place_of_error,
    shown_sql,
)
from gateway.testing.rehearse.pairs import Pair
from gateway.testing.rehearse.sandbox import End, EndedRun
from gateway.testing.rehearse.schedules import Trial
from gateway.testing.rehearse.trace import ExternalCall, RehearsedRun, Step, source_line

Grouping = Callable[[ExternalCall], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRun:
    """The reference: a single run (or two events in their order), and how to compare with it."""

    trial: Trial
    masks: Masks
    group: Grouping
    again: Trial | None = None
    """The same schedule in another database.

    An action that is missing there (such as the request for an access token that is kept in memory)
    is not counted as missing in other runs either.
    """


@dataclass(slots=True, kw_only=True)
class ResultChecker:
    """Collects the findings, without duplicates."""

    root: Path
    tables: Sequence[Table]
    findings: dict[tuple[str, str], RehearsalFinding] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    repeats: dict[str, None] = field(default_factory=dict)
    """Actions that a second event of the same change repeats, although that may be intended."""

    def add(
        self,
        schedule: str,
        event: str,
        fault: Fault,
        subject: str,
        place: str | None,
        *,
        advice: str | None = None,
        **details: Any,
    ) -> None:
        """Add a finding.

        The first one with its key stays, because its schedule is the shorter one.
        """
        finding = RehearsalFinding(
            fault=fault,
            schedule=schedule,
            event=event,
            subject=subject,
            place=place,
            source=source_line(self.root, place),
            advice=advice or ADVICE[fault],
            **details,
        )
        self.findings.setdefault(finding.key, finding)

    def _add_rows(
        self,
        trial: Trial,
        fault: Fault,
        found: Difference,
        *,
        advice: str | None = None,
        first_wins: bool = False,
    ) -> None:
        step = last_writer(_steps(trial), found.table)
        self.add(
            trial.words,
            trial.label,
            fault,
            found.table,
            step.place if step else None,
            advice=advice or advise_on_rows(fault, found, first_wins=first_wins),
            statement=shown_sql(step) if step else None,
            difference=found,
        )

    def _add_error(self, trial: Trial, fault: Fault, ended: EndedRun) -> None:
        advice = advise_on_error(fault, ended.end, is_skipped=trial.has_unknown_effects)
        place = place_of_error(ended.raised, self.root)
        subject = ended.error or ended.end
        self.add(trial.words, trial.label, fault, subject, place, advice=advice, error=ended.error)

    def _add_calls(
        self,
        trial: Trial,
        calls: Sequence[ExternalCall],
        expected: int,
        *,
        advice: str | None = None,
        reference: str = "by a single run",
    ) -> None:
        """Add a call that was sent more often than by the reference."""
        last = calls[-1]
        self.add(
            trial.words,
            trial.label,
            Fault.CALLED,
            last.text,
            last.place,
            advice=advice or (None if last.key is None else OTHER_KEY_ADVICE),
            calls=tuple(calls),
            expected_calls=expected,
            reference=reference,
        )

    def has_found(self, fault: Fault) -> bool:
        """Return whether there is a finding of this kind."""
        return any(finding.fault is fault for finding in self.findings.values())

    def note(self, text: str, about: str | None = None) -> None:
        """Add a note, which is not a finding. There is only one note for each value of `about`."""
        self.notes.setdefault(about or text, text)

    def check(
        self,
        reference: ReferenceRun,
        trial: Trial,
        fault: Fault | None = None,
        *,
        is_one_time: bool = False,
    ) -> None:
        """Add each difference from the reference as a finding.

        `fault` overrides the fault of rows that differ, if the schedule is more specific than the
        rows. With `is_one_time`, the first of two events may win.
        """
        self._check_ends(reference, trial, fault)
        for found in () if _has_failed(trial) else self._compare(reference, trial):
            if trial.has_unknown_effects and all(map(_is_emptied, found.changes)):
                continue  # the result of a call that `gateway effects` lists
            first_wins = _first_wins(reference, trial, found)
            if not (first_wins and is_one_time):
                self._add_rows(trial, fault or fault_of(found), found, first_wins=first_wins)
        self._check_calls(reference, trial)

    def check_later(self, reference: ReferenceRun, later: Trial, trial: Trial) -> None:
        """Add what a run does again at a later time, because the key is made of the clock.

        `later` is a single run at that time. Without a key that changes, another result may be
        intended: a reminder that is due again.
        """
        timed = learn(self.tables, reference.trial.state, later.state)
        keys = {table.label: table.key for table in self.tables} | {JOBS: ("event_id",)}
        for found in self._compare(reference, trial):
            name = found.table
            changing = timed[name] - reference.masks.get(name, frozenset())
            has_more = len(trial.state[name]) > len(reference.trial.state[name])
            if has_more and not changing.isdisjoint(keys[name]):
                self._add_rows(trial, Fault.ADDED, found, advice=CLOCK_ADVICE)
        expected = _grouped(_calls(reference.trial), by_place)
        for place, calls in _grouped(_calls(trial), by_place).items():
            before = {_identity(call) for call in expected.get(place, [])}
            now = {_identity(call) for call in calls}
            is_other = None not in now and len(now) > len(before) > 0
            if is_other and not self._has_found_call(calls[-1].place):
                self._add_calls(trial, calls, len(before), advice=CLOCK_ADVICE)

    def _compare(self, reference: ReferenceRun, trial: Trial) -> list[Difference]:
        return compare(self.tables, reference.trial.state, trial.state, reference.masks)

    def _has_found_call(self, place: str | None) -> bool:
        """Return whether there is a finding on a call that this line repeats."""
        found = self.findings.values()
        return any(one.fault is Fault.CALLED and one.place == place for one in found)

    def check_overlap(self, serial: Sequence[ReferenceRun], trial: Trial) -> None:
        """Add each result that differs from both orders in which two events can run."""
        ends = {ended.end for one in serial for ended in one.trial.last}
        for ended in trial.last:
            if ended.end not in {*ends, End.DONE, End.LOST}:
                self._add_error(trial, Fault.OVERLAP, ended)
        differences = [self._compare(one, trial) for one in serial]
        for found in () if _has_failed(trial) else min(differences, key=_size):
            self._add_rows(trial, Fault.OVERLAP, found)
        expected = [_grouped(_calls(one.trial), one.group) for one in serial]
        for group, calls in _grouped(_calls(trial), serial[0].group).items():
            most = max((one.get(group, []) for one in expected), key=_count_distinct)
            if _count_distinct(calls) > _count_distinct(most):
                self._add_calls(
                    trial,
                    calls,
                    len(most),
                    advice=BOTH_SEND_ADVICE,
                    reference="one after the other",
                )

    def check_keys(self, trial: Trial) -> None:
        """Add a finding for different calls with one idempotency key."""
        seen: dict[tuple[str, str], ExternalCall] = {}
        for call in _calls(trial):
            if call.key is None:
                continue
            first = seen.setdefault((call.text, call.key), call)
            if first.content != call.content:
                subject = f"two different calls of {call.text} have the same idempotency key"
                self.add(trial.words, trial.label, Fault.SHARED_KEY, subject, call.place)

    def check_jobs(self, reference: ReferenceRun, trial: Trial) -> None:
        """Add a finding for jobs of two different objects of which only the first is published."""
        for found in self._compare(reference, trial):
            if found.table == JOBS:
                self._add_rows(trial, Fault.ORDER, found)

    def check_repeat(self, reference: ReferenceRun, pair: Pair) -> None:
        """Add the actions that the second of two events of one change repeats.

        It is a finding if the handler takes two types that are sent together. Otherwise it is a
        note, because it may be intended.
        """
        trial = reference.trial
        is_alike = pair.is_repeat or pair.is_one_fact
        if not is_alike or pair.before or len(trial.runs) != 2 or trial.first_state is None:
            return
        first, second = ([*_calls_of(ended)] for ended in trial.runs)
        for again in second:
            before = [call for call in first if _is_again(call, again, pair, reference.group)]
            if before and pair.is_one_fact:
                self._add_calls(trial, [before[0], again], 1, advice=ONE_FACT_ADVICE)
            elif before:
                self.repeats.setdefault(f"{again.text} ({again.place})")
        for found in compare(self.tables, trial.first_state, trial.state, reference.masks):
            columns = _doubled(found)
            if columns and pair.is_one_fact:
                self._add_rows(trial, Fault.CHANGED, found, advice=ONE_FACT_ADVICE)
            elif columns and pair.is_one_time:
                self.repeats.update(dict.fromkeys(f"{found.table}.{name}" for name in columns))

    def check_outage(self, reference: ReferenceRun, trial: Trial) -> None:
        """Add a finding for actions that are repeated or silently lost.

        An action is silently lost if the delivery is done and `gateway effects` lists nothing.
        """
        [last] = trial.last
        if last.end in {End.FAILED, End.LATE}:
            self._add_error(trial, Fault.RAISES, last)
        self._check_calls(reference, trial, least=1)  # to another service instead
        if last.end is End.DONE and not trial.has_unknown_effects:
            self._check_lost(reference, trial)

    def _check_lost(self, reference: ReferenceRun, trial: Trial) -> None:
        first = trial.runs[0].run
        failed = next((call for call in first.calls if call.outage is not None), None)
        if failed is None or failed.outage is None:
            return
        is_unchecked = failed.outage.status is not None and not first.has_seen_status
        received = _grouped(_calls(trial), reference.group)
        usual = reference.again or reference.trial
        expected = _grouped(_calls(usual), reference.group)
        missing = [
            calls[0].text
            for group, calls in expected.items()
            if _count_distinct(received.get(group, [])) < _count_distinct(calls)
        ]
        differences = self._compare(reference, trial)
        is_sent_otherwise = not received.keys() <= expected.keys()
        recorded = [found.table for found in differences if any(map(_has_new_value, found.changes))]
        has_less = any(change.after is None for found in differences for change in found.changes)
        if not (missing or has_less or (is_unchecked and differences)):
            return
        if is_sent_otherwise and not (has_less or is_unchecked):
            return  # another service was called because the first one is down
        if recorded and not is_unchecked:
            text = COMPENSATED.format(tables=", ".join(recorded))
            self.note(f"{trial.words}: {text}", f"lost {failed.place}")
            return
        subject = (
            differences[0].table
            if not missing
            else (f"{missing[0]} is lost: the delivery is done, and `gateway effects` is empty")
        )
        self.add(
            trial.words,
            trial.label,
            Fault.LOST,
            subject,
            failed.place,
            advice=UNCHECKED_ADVICE if is_unchecked else None,
            difference=None if missing else differences[0],
        )

    def _check_ends(self, reference: ReferenceRun, trial: Trial, fault: Fault | None) -> None:
        expected = {ended.end for ended in reference.trial.last}
        for ended in trial.last:
            if ended.end not in {*expected, End.DONE, End.LOST, End.KILLED}:
                self._add_error(trial, fault or Fault.RAISES, ended)

    def _check_calls(self, reference: ReferenceRun, trial: Trial, *, least: int = 0) -> None:
        """Add a finding for each call that is sent too often.

        `least` is how often a call may be made that a single run does not make.
        """
        expected = _grouped(_calls(reference.trial), reference.group)
        for group, calls in _grouped(_calls(trial), reference.group).items():
            before = expected.get(group, [])
            most = max(_count_distinct(before), least)
            if _count_distinct(calls) <= most:
                self._note_repeats(calls, before)
            elif _count_distinct(_unforgiven(calls, trial)) <= most:
                self._note_unknown(calls)
            else:
                advice = None
                if _is_own_retry(calls, trial, len(before)):
                    advice = OWN_RETRY_ADVICE
                elif any(_is_called_not_done(call) for call in calls):
                    advice = NOT_DONE_ADVICE
                self._add_calls(trial, calls, len(before), advice=advice)

    def _note_unknown(self, calls: Sequence[ExternalCall]) -> None:
        last = calls[-1]
        if last.once is not None:
            advice = UNKNOWN_ADVICE.format(name=last.once.name)
            self.note(f"{last.text} ({last.place}) {advice}", f"unknown {last.place}")

    def _note_repeats(self, calls: Sequence[ExternalCall], before: Sequence[ExternalCall]) -> None:
        last = calls[-1]
        if last.is_repeatable and last.key is None and len(calls) > len(before):
            method, _, url = last.text.partition(" ")
            advice = REPEATED_ADVICE.format(method=method if url else "it")
            self.note(f"{last.text} ({last.place}) {advice}", f"{method} {last.place}")


def _first_wins(reference: ReferenceRun, trial: Trial, found: Difference) -> bool:
    """Return whether, in both orders, each differing row was left as the first event wrote it."""
    in_order, in_reverse = reference.trial.first_state, trial.first_state
    if in_order is None or in_reverse is None:
        return False
    mask = reference.masks.get(found.table, frozenset())
    older, newer = (masked(state[found.table], mask) for state in (in_order, in_reverse))
    return all(change.before in older and change.after in newer for change in found.changes)


def choose_grouping(one: Trial, other: Trial) -> Grouping:
    """Group calls by their text, or by their line if the text differs from run to run."""
    texts = [sorted(call.text for call in _calls(trial)) for trial in (one, other)]
    return by_text if texts[0] == texts[1] else by_place


def by_text(call: ExternalCall) -> str:
    """Group calls by their text, if it is the same in every run."""
    return call.text


def by_place(call: ExternalCall) -> str:
    """Group calls by their line, if their text differs in every run."""
    return call.place or call.text.partition(" ")[0]


def _identity(call: ExternalCall) -> str | None:
    """Return by what the callee, or else `ctx.once`, recognises a repeat of the call."""
    if call.key is not None or call.once is None:
        return call.key
    return call.once.per


def _calls(trial: Trial) -> Iterator[ExternalCall]:
    for ended in trial.runs:
        yield from _calls_of(ended)


def _calls_of(ended: EndedRun) -> Iterator[ExternalCall]:
    """Yield the writing calls that the callee has received."""
    yield from (call for call in ended.run.calls if call.is_write and call.is_received)


def _steps(trial: Trial) -> Iterator[Step]:
    for ended in trial.runs:
        yield from ended.run.steps


def _grouped(calls: Iterable[ExternalCall], group: Grouping) -> Mapping[str, list[ExternalCall]]:
    found: defaultdict[str, list[ExternalCall]] = defaultdict(list)
    for call in calls:
        found[group(call)].append(call)
    return found


def _count_distinct(calls: Sequence[ExternalCall]) -> int:
    """Return how many distinct calls the callee sees.

    Calls with the same idempotency key count once, and so do repeats of a PUT with the same
    content.
    """
    keys = {call.key for call in calls if call.key is not None}
    others = [call for call in calls if call.key is None]
    repeats = {call.content for call in others if call.is_repeatable}
    return len(keys) + len(repeats) + sum(not call.is_repeatable for call in others)


def _unforgiven(calls: Sequence[ExternalCall], trial: Trial) -> list[ExternalCall]:
    """Return the calls without those whose outcome `ctx.once` could not know.

    These are the calls of a run that was killed during their `ctx.once`, and the first call that
    failed in a `ctx.once` with the calls before it, if a later run repeated them under its name.
    With `unknown="skip"`, no run repeats a call that failed, unless the handler says that it was
    not done.
    """
    killed = [p.run for p in trial.runs if p.end is End.KILLED and p.run.steps]
    others = [p.run for p in trial.runs if p.end is not End.KILLED]
    again = {call.once for run in others for call in run.calls}
    forgiven = [
        call
        for run in killed
        for call in run.calls
        if call.once is not None and call.once == run.steps[-1].once and call.once in again
    ]
    later = {call.once for call in _calls_of(trial.runs[-1])}
    for ended in trial.runs[:-1]:
        unanswered = _until_failure(ended.run)
        forgiven += [
            call
            for call in unanswered
            if call.once is not None and call.once.unknown == "retry" and call.once in later
        ]
    return [call for call in calls if not any(call is other for other in forgiven)]


def _until_failure(run: RehearsedRun) -> list[ExternalCall]:
    """Return the first call that failed, and those before it in the same `ctx.once`."""
    first = next((n for n, call in enumerate(run.calls) if call.outage is not None), -1)
    return [call for call in run.calls[: first + 1] if call.once == run.calls[first].once]


def _is_own_retry(calls: Sequence[ExternalCall], trial: Trial, expected: int) -> bool:
    """Return whether one run alone sent more than a single run does, to a callee that was down."""
    failing = [p.run for p in trial.runs if p.run.failing is not None]
    return any(
        sum(any(call is own for own in run.calls) for call in calls) > expected for run in failing
    )


def _is_called_not_done(call: ExternalCall) -> bool:
    """Return whether the callee has acted on the call, and the handler said that it had not."""
    is_failed = call.outage is not None and call.outage.is_received
    return is_failed and call.once is not None and call.once.unknown == "skip"


def _is_again(call: ExternalCall, again: ExternalCall, pair: Pair, group: Grouping) -> bool:
    """Return whether the second event's call repeats the first one's, unnoticed by the callee."""
    if again.is_repeatable or group(call) != group(again):
        return False
    if call.key is not None and call.key == again.key:
        return False
    older, newer = pair.older.received.id, pair.newer.received.id
    return not pair.is_one_fact or call.content.replace(older, newer) == again.content


def _doubled(found: Difference) -> list[str]:
    """Return the columns in which the second event added the same value again."""
    return list(
        dict.fromkeys(
            column
            for change in found.changes
            if change.before is not None and change.after is not None
            for column, value in change.before.items()
            if isinstance(value, int | float) and value and change.after.get(column) == 2 * value
        )
    )


def _has_failed(trial: Trial) -> bool:
    """Return whether a run failed permanently. Its rows are then missing, which is expected."""
    return any(ended.end in {End.FAILED, End.LATE} for ended in trial.last)


def _size(differences: Sequence[Difference]) -> int:
    return sum(len(found.changes) for found in differences)


def _is_emptied(change: Change) -> bool:
    """Return whether the row differs only in values that are missing."""
    before, after = change.before, change.after
    if before is None or after is None:
        return False
    return all(value is None for name, value in after.items() if value != before.get(name))


def _has_new_value(change: Change) -> bool:
    """Return whether a row has a value that it does not have after a successful run."""
    before, after = change.before or {}, change.after or {}
    return any(value is not None and value != before.get(name) for name, value in after.items())
