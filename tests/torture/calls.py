"""The audit of calls to the outside: compares what the callee did, what handlers went on without,
and what `gateway effects` lists; and then what became of the effects that a person resolved."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.torture.callee import REFUSALS, Call
from tests.torture.record import Record

MOST_EXAMPLES: Final = 5
SKIPPED: Final = "skipped"
NOT_SENT: Final = ("ConnectError", "ConnectTimeout", "PoolTimeout")
STATUS: Final = re.compile(r"HTTPStatusError (\d{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An effect of unknown outcome, as `gateway effects` shows it."""

    event_id: str
    route: str
    error: str | None
    """How its last call ended; None if no run saw that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A delivery that makes a call, as the ledger has it."""

    event_id: str
    status: str
    runs: int
    is_interrupted: bool
    """Whether a run was lost, handed back or timed out: perhaps in the middle of its call."""
    gone_on: str | None = None
    """Its handler completed without the outcome of its call: skipped, or the error it caught."""
    subject: str = ""
    """What its call is about, if other events are about the same (`per`); else its event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What a person did about the effects that were listed, and what came of it."""

    confirmed: frozenset[str] = frozenset()
    retries: Mapping[str, int] = field(default_factory=dict)
    """How often a retry of the effect was ordered."""
    completions: Mapping[str, int] = field(default_factory=dict)
    """How often a run of the handler has committed, from the beginning."""
    listed_after: Sequence[str] = ()
    problem: str = ""
    """Why not everything could be resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What was found."""

    made: int = 0
    refused: int = 0
    called_again: int = 0
    """Calls that were made again after a refusal."""
    repeated: int = 0
    """Calls that were made again under their key after an unknown outcome, by `unknown="retry"`."""
    shared: int = 0
    """Keys of `per` that several events had."""
    sharing: int = 0
    """Those events."""
    listed: int = 0
    listed_done: int = 0
    """Listed effects that the callee had done all the same."""
    unseen: int = 0
    """Listed effects whose call never reached the callee."""
    confirmed: int = 0
    retried: int = 0
    done_twice: int = 0
    """Of these: effects with `unknown="skip"` that had been done before."""
    lost: int = 0
    """Calls that the callee has not done, and of which nobody would know."""
    problems: Sequence[str] = ()

    def counts(self) -> list[tuple[str, str]]:
        """Return the figures for people, with their labels."""
        return [
            (
                "outside calls",
                f"{self.made:,}, lost: {self.lost:,}; refused: {self.refused:,},"
                f" made again after that: {self.called_again:,};"
                f" repeated under their key: {self.repeated:,};"
                f" {self.shared:,} calls for {self.sharing:,} events with the same `per`",
            ),
            (
                "effects listed",
                f"{self.listed:,}, done by the server all the same: {self.listed_done:,},"
                f" never received by it: {self.unseen:,}",
            ),
            (
                "effects resolved",
                f"{self.confirmed:,} confirmed, {self.retried:,} retried;"
                f" done twice by that request: {self.done_twice:,}",
            ),
        ]


def audit_calls(
    record: Record,
    callers: Sequence[Caller],
    listed: Iterable[Listed],
    hidden: Sequence[str],
    resolution: Resolution,
) -> Calls:
    """Pure, as the rest of the audit."""
    by_subject = _by_subject(callers)
    made, ordered = _calls_about(record.calls), _calls_about(record.ordered_calls)
    problems = _Problems()
    by_listed = _listed_by_subject(callers, listed, problems)
    for event_id in hidden:
        problems.add("completed with an effect that is neither done nor listed", event_id)
    for subject, calls in made.items():
        _check_requests(calls, by_subject.get(subject), problems)
    for subject, found in by_subject.items():
        _check_callers(found, made[subject], by_listed.get(subject), problems)
        if subject in by_listed:
            _check_resolved(found, made[subject], ordered[subject], resolution, problems)
    for subject in ordered.keys() - by_listed.keys():
        problems.add("called again although not listed", subject)
    for event_id in resolution.listed_after:
        problems.add("still listed after it was resolved", event_id)
    if resolution.problem:
        problems.add("not resolved", resolution.problem)
    shared = [found.callers for found in by_subject.values() if len(found.callers) > 1]
    return Calls(
        made=len(record.calls),
        refused=sum(call.reply.is_refusal for call in record.calls),
        called_again=sum(_after(calls, is_refusal=True) for calls in made.values()),
        repeated=sum(_after(calls, is_refusal=False) for calls in made.values()),
        shared=len(shared),
        sharing=sum(map(len, shared)),
        listed=len(by_listed),
        listed_done=sum(_is_done(made[subject]) for subject in by_listed),
        unseen=sum(not made[subject] for subject in by_listed),
        confirmed=len(resolution.confirmed),
        retried=len(resolution.retries),
        done_twice=sum(
            _is_done(made[subject])
            and any(call.unknown == "skip" and call.reply.is_done for call in ordered[subject])
            for subject in by_listed
        ),
        lost=problems.count("lost"),
        problems=problems.lines(),
    )


@dataclass(slots=True)
class _Subject:
    """All deliveries whose call is about the same."""

    name: str
    callers: list[Caller] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return all(caller.status == "done" for caller in self.callers)

    @property
    def is_interrupted(self) -> bool:
        return any(caller.is_interrupted for caller in self.callers)

    @property
    def runs(self) -> int:
        return sum(caller.runs for caller in self.callers)

    @property
    def gone_on(self) -> set[str]:
        return {caller.gone_on for caller in self.callers if caller.gone_on is not None}


def _check_requests(calls: Sequence[Call], subject: _Subject | None, problems: "_Problems") -> None:
    """One key, and with `skip` no second request unless the callee had refused the first."""
    name = calls[0].subject
    if len({call.key for call in calls}) > 1:
        problems.add("called under a second key", name)
    if subject is None:
        problems.add("called without a delivery", name)
        return
    if calls[0].unknown == "skip" and not all(call.reply.is_refusal for call in calls[:-1]):
        problems.add('called again with unknown="skip"', name)
    if len(calls) > subject.runs:
        problems.add("called more often than it was run", name)


def _check_callers(
    subject: _Subject, calls: Sequence[Call], listed: Listed | None, problems: "_Problems"
) -> None:
    """What is listed is what a handler went on without, and nothing else."""
    name, gone_on = subject.name, subject.gone_on
    is_refused_only = all(call.reply.is_refusal for call in calls)
    if not subject.is_done:
        if listed is not None:
            problems.add("listed, but not completed", name)
    elif not gone_on:
        if listed is not None:
            problems.add("listed although its handler has the outcome", name)
        if not _is_done(calls):
            problems.add("lost: completed, not done by the callee and not listed", name)
    elif not (is_refused_only and all(map(_is_refused, gone_on))):
        # A worker that was stopped in the middle of its call can still hear that it was done.
        is_known_by_now = subject.is_interrupted and _is_done(calls)
        if listed is None and not is_known_by_now:
            problems.add("lost: its handler went on without the outcome, and not listed", name)
    elif listed is not None and not subject.is_interrupted:
        problems.add("listed although every call was refused", name)
    if listed is not None:
        _check_listed(subject, calls, listed, problems)


def _check_listed(
    subject: _Subject, calls: Sequence[Call], listed: Listed, problems: "_Problems"
) -> None:
    if calls and calls[0].unknown == "skip" and _is_refused(listed.error):
        problems.add("listed for an answer that means that nothing was done", subject.name)
    if not _is_explained(subject, calls, listed):
        problems.add("listed for no reason that the callee knows of", subject.name)


def _is_explained(subject: _Subject, calls: Sequence[Call], listed: Listed) -> bool:
    """An error that a run has seen stands for itself, except that of an answer: the callee knows
    its answers. Without one, a run was broken off, or the record of its error was."""
    if listed.error is None:
        return subject.is_interrupted or not all(call.reply.is_refusal for call in calls)
    status = STATUS.fullmatch(listed.error)
    return status is None or any(call.reply.how == status[1] for call in calls)


def _check_resolved(
    subject: _Subject,
    before: Sequence[Call],
    ordered: Sequence[Call],
    resolution: Resolution,
    problems: "_Problems",
) -> None:
    """One that was confirmed is never called; one that was retried is done, at most once for each
    order, under the key that it had."""
    name, event_ids = subject.name, [caller.event_id for caller in subject.callers]
    retries = sum(resolution.retries.get(event_id, 0) for event_id in event_ids)
    completions = sum(resolution.completions.get(event_id, 0) for event_id in event_ids)
    if resolution.confirmed.intersection(event_ids):
        if ordered or retries:
            problems.add("called although it was confirmed", name)
        return
    if not retries:
        problems.add("listed, and neither confirmed nor retried", name)
        return
    if not ordered:
        problems.add("lost: a retry was ordered, and nobody was called", name)
    if len({call.key for call in (*before, *ordered)}) > 1:
        problems.add("retried under a second key", name)
    if ordered and ordered[0].unknown == "skip" and len(ordered) > retries:
        problems.add("called more often than a retry was ordered", name)
    if completions != len(event_ids) + retries:
        problems.add("completed more or less often than it was ordered", name)


def _listed_by_subject(
    callers: Iterable[Caller], listed: Iterable[Listed], problems: "_Problems"
) -> dict[str, Listed]:
    subjects = {caller.event_id: caller.subject or caller.event_id for caller in callers}
    found: dict[str, Listed] = {}
    for effect in listed:
        subject = subjects.get(effect.event_id)
        if subject is None:
            problems.add("listed without a delivery", effect.event_id)
        elif subject in found:
            problems.add("listed twice", subject)
        else:
            found[subject] = effect
    return found


def _by_subject(callers: Iterable[Caller]) -> dict[str, _Subject]:
    found: dict[str, _Subject] = {}
    for caller in callers:
        name = caller.subject or caller.event_id
        found.setdefault(name, _Subject(name)).callers.append(caller)
    return found


def _calls_about(calls: Iterable[Call]) -> defaultdict[str, list[Call]]:
    found: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        found[call.subject].append(call)
    return found


def _is_done(calls: Iterable[Call]) -> bool:
    return any(call.reply.is_done for call in calls)


def _is_refused(error: str | None) -> bool:
    status = STATUS.fullmatch(error or "")
    return error in NOT_SENT or (status is not None and int(status[1]) in REFUSALS)


def _after(calls: Sequence[Call], *, is_refusal: bool) -> int:
    return sum(call.reply.is_refusal == is_refusal for call in calls[:-1])


class _Problems:
    """Counts problems of one kind, and keeps some examples."""

    def __init__(self) -> None:
        self._found: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, problem: str, example: str) -> None:
        self._found[problem].append(example)

    def count(self, kind: str) -> int:
        """Return how many problems of a kind there are: the word before the colon."""
        return sum(len(v) for k, v in self._found.items() if k.partition(":")[0] == kind)

    def lines(self) -> list[str]:
        return [
            f"effects {problem}: {len(found)} ({', '.join(found[:MOST_EXAMPLES])})"
            for problem, found in self._found.items()
        ]
