"""Rehearse one handler: choose the schedules to try, and report their results."""

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.config.registry import Subscription
from gateway.testing.rehearse.checks import Grouping, ReferenceRun, ResultChecker, by_place, by_text
from gateway.testing.rehearse.database import Masks, learn, merge
from gateway.testing.rehearse.events import MOST_EVENTS, RehearsedEvent, evenly, without_sample
from gateway.testing.rehearse.findings import (
    BLOCKING_ADVICE,
    KEPT,
    REPEATS,
    SKIPPED,
    Fault,
    Report,
    Verdict,
    escape_in_words,
)
from gateway.testing.rehearse.isolation import RehearsalGuard
from gateway.testing.rehearse.pairs import (
    Pair,
    Relation,
    find_pairs,
    find_relatives,
    run_in_turn,
    without_pair,
)
from gateway.testing.rehearse.sandbox import End, EndedRun, Sandbox
from gateway.testing.rehearse.schedules import Schedules, Trial, Way
from gateway.testing.rehearse.single_runs import Failure, KnownEvent, SingleRuns
from gateway.testing.rehearse.trace import Step, StepKind

MOST_STEPS: Final = 25
BUDGET_S: Final = 30.0
"""Time limit for one handler. It may be one that sleeps."""

Signature = tuple[tuple[str, StepKind, str, str | None, bool], ...]


Check = Callable[[Trial], None]
"""Compares the result of a schedule with its reference, and adds the findings."""


class Rehearsal:
    """The rehearsal of one handler on one route."""

    def __init__(
        self,
        sandbox: Sandbox,
        guard: RehearsalGuard,
        subscription: Subscription,
        *,
        root: Path,
        started_at: datetime,
    ) -> None:
        self._sandbox = sandbox
        self._guard = guard
        self._subscription = subscription
        self._root = root
        self._started_at = started_at
        self._began = time.monotonic()
        self._schedules = Schedules(sandbox, subscription)
        self._checks = ResultChecker(root=root, tables=sandbox.database.tables)
        self._single_runs = SingleRuns(sandbox, self._schedules, self._checks)
        self._tried: set[Signature] = set()
        self._left_out: Counter[str] = Counter()

    async def rehearse(self, events: Sequence[RehearsedEvent]) -> Report:
        """Try the handler on these events, and on pairs that are derived from them."""
        self._guard.clear()
        chosen = self._chosen(events)
        known = await self._single_runs.make(chosen)
        tried = known
        if self._checks.has_found(Fault.MEMORY):
            self._checks.note("nothing else was tried: what the handler remembers decides the rest")
            tried = []
        for item in tried:
            twice = partial(self._schedules.twice, item.event)
            await self._try("with two runs", twice, partial(self._checks.check, item.reference))
            await self._try_later(item)
        for item in tried:
            await self._try_interruptions(item)
        await self._try_pairs(tried)
        if self._left_out:
            kinds = ", ".join(f"{number} {kind}" for kind, number in self._left_out.items())
            self._checks.note(f"schedules were left out after {BUDGET_S:g} s: {kinds}")
        if what := ", ".join(self._checks.repeats):
            self._checks.note(REPEATS.format(what=what))
        self._add_escapes(chosen)
        if idle := _idle_types(known):
            types = ", ".join(idle)
            self._checks.note(f"wrote nothing and sent nothing on {types}: nothing was tried there")
        return self._report(chosen, known)

    def _chosen(self, events: Sequence[RehearsedEvent]) -> list[RehearsedEvent]:
        chosen = evenly(events, MOST_EVENTS)
        if len(chosen) < len(events):
            self._checks.note(f"tried on {len(chosen)} of {len(events)} types, spread evenly")
        for type in without_sample(self._subscription, events):
            self._checks.note(f"not tried on {type}, of which there is no sample")
        return chosen

    async def _try_later(self, known: KnownEvent) -> None:
        """Run the handler again by a later clock: a key that is made of the time is another one.

        A handler that takes another path at that time, because the event is too old for it, is not
        compared.
        """
        if self._is_over:
            self._left_out["with two runs"] += 1
            return
        later = await self._schedules.once(known.event, is_later=True)
        if _path(later.runs[0]) != _path(known.ended):
            return
        again = partial(self._schedules.twice, known.event, is_later=True)
        check = partial(self._checks.check_later, known.reference, later)
        await self._try("with two runs", again, check)

    async def _try_interruptions(self, known: KnownEvent) -> None:
        """Stop, pause or fail a run at each of its steps."""
        event, ended = known.event, known.ended
        check = partial(self._checks.check, known.reference)
        if not self._is_new("alone", ended):
            return
        steps = self._chosen_steps(ended)
        for number, step in steps:
            for is_after in MOMENTS[step.kind]:
                killed = partial(self._schedules.killed, event, step, number, is_after=is_after)
                await self._try("with a killed run", killed, check)
        is_alone = run_in_turn(self._subscription, event)
        for number, step in steps:
            if step.kind is StepKind.STATEMENT and not is_alone:
                at_once = partial(self._schedules.at_once, event, step, number)
                await self._try("with two runs at once", at_once, partial(check, fault=Fault.RACE))
        if ended.end is not End.DONE:
            return
        late = partial(self._schedules.timed_out, event, ended.run.steps[-1])
        await self._try("with a second attempt", late, check)
        check_outage = partial(self._checks.check_outage, known.reference)
        for _, step in steps:
            for outage in step.outages:
                failing = partial(self._schedules.failing, event, step, outage)
                await self._try("with a failing callee", failing, check_outage)

    def _is_new(self, relation: str, *runs: EndedRun) -> bool:
        """Return whether these runs have statements, calls or lines not seen in an earlier one."""
        signature = tuple(
            (relation, step.kind, step.text, step.place, bool(step.rows))
            for ended in runs
            for step in ended.run.steps
        )
        is_new = signature not in self._tried
        self._tried.add(signature)
        return is_new

    def _chosen_steps(self, ended: EndedRun) -> list[tuple[int, Step]]:
        """Return the chosen steps, each with the number of statements up to it."""
        steps = list(_numbered(ended.run.steps))
        chosen = evenly(steps, MOST_STEPS)
        if len(chosen) < len(steps):
            self._checks.note(
                f"stopped at {len(chosen)} of {len(steps)} statements and calls, spread evenly"
            )
        return chosen

    async def _try_pairs(self, known: Sequence[KnownEvent]) -> None:
        masks = merge(item.reference.masks for item in known)
        group = by_place if any(i.reference.group is by_place for i in known) else by_text
        events = [item.event for item in known]
        pairs = find_pairs(self._subscription, events, self._started_at)
        self._note_order(known, pairs)
        for item in known:
            if item.is_busy and self._is_new("related", item.ended):
                pairs += filter(self._is_run, find_relatives(item.event))
        for pair in pairs:
            await self._try_pair(pair, masks, group)

    def _is_run(self, pair: Pair) -> bool:
        """Return whether the gateway runs both events.

        Adds a note if it skips the event of another object.
        """
        is_once = pair.is_once(self._subscription)
        if is_once and pair.relation is Relation.SIBLING:
            path = self._subscription.once_per
            self._checks.note(SKIPPED.format(words=pair.words, path=path), "once_per")
        return not is_once

    async def _try_pair(self, pair: Pair, masks: Masks, group: Grouping) -> None:
        """Run two events one after the other in both orders, and then at the same time.

        At the same time, the result must equal that of one of the two orders.
        """
        in_order = await self._in_order(pair)
        if in_order is None:
            return
        other = await self._schedules.both(pair, is_skewed=True)
        masks = merge([masks, learn(self._sandbox.database.tables, in_order.state, other.state)])
        reference = ReferenceRun(trial=in_order, masks=masks, group=group)
        self._checks.check_repeat(reference, pair)
        in_reverse = await self._schedules.both(pair, is_reversed=True)
        if pair.relation is Relation.SUCCESSOR:
            self._checks.check(reference, in_reverse, Fault.ORDER, is_one_time=pair.is_one_time)
        elif pair.relation is Relation.SIBLING:
            self._checks.check_jobs(reference, in_reverse)
            self._checks.check_keys(in_order)
            self._note_kept(pair, in_order)
        if run_in_turn(self._subscription, pair.older, pair.newer) or not self._is_new(
            pair.relation, *in_order.runs
        ):
            return
        serial = [reference, replace(reference, trial=in_reverse)]
        for number, step in self._chosen_steps(in_order.runs[0]):
            if step.kind is StepKind.STATEMENT:
                at_once = partial(self._schedules.both_at_once, pair, step, number)
                check = partial(self._checks.check_overlap, serial)
                await self._try("with two events at once", at_once, check)

    def _note_kept(self, pair: Pair, trial: Trial) -> None:
        """Note each effect that another object does not get, because of its `per`."""
        for once in trial.last[-1].run.kept:
            if once.per is not None:
                self._checks.note(KEPT.format(words=pair.words, name=once.name), f"per {once.name}")

    def _note_order(self, known: Sequence[KnownEvent], pairs: Sequence[Pair]) -> None:
        busy = [item.event for item in known if item.is_busy]
        if types := without_pair(self._subscription, busy, pairs):
            lines = ", ".join(types)
            self._checks.note(f"order not tried on {lines}: no later event of the object is there")

    async def _in_order(self, pair: Pair) -> Trial | None:
        """Run the reference of a pair. Returns None if a run fails or the time limit is reached."""
        if self._is_over:
            self._left_out["with two events"] += 1
            return None
        trial = await self._schedules.both(pair)
        for ended in trial.last:
            if ended.end in {End.FAILED, End.LATE}:
                types = f"{pair.older.label}, then {pair.newer.label} of the same object"
                if pair.relation is not Relation.SUCCESSOR:
                    types = f"{pair.words} ({pair.label}), one after the other"
                self._checks.note(f"fails on {types}: {ended.error}")
        ends = {ended.end for ended in trial.last}
        return trial if ends <= {End.DONE, End.REJECTED} else None

    async def _try(
        self, kind: str, run: Callable[[], Coroutine[Any, Any, Trial]], check: Check
    ) -> None:
        """Run a schedule and check its result, unless the time is over."""
        if self._is_over:
            self._left_out[kind] += 1
            return
        check(await run())

    @property
    def _is_over(self) -> bool:
        return time.monotonic() - self._began > BUDGET_S

    def _add_escapes(self, events: Sequence[RehearsedEvent]) -> None:
        for escape in self._guard.found():
            subject, label = escape_in_words(escape), events[0].label
            self._checks.add("run once", label, Fault.ESCAPE, subject, escape.place)
        for call in self._guard.blocking.values():
            self._checks.note(f"{call.function} ({call.place}) {BLOCKING_ADVICE}")

    def _report(self, events: Sequence[RehearsedEvent], known: Sequence[KnownEvent]) -> Report:
        findings = tuple(self._checks.findings.values())
        failures = self._single_runs.failures
        lines = _failure_lines(failures)
        verdict, reason, advice = Verdict.SAFE, None, None
        if findings:
            verdict = Verdict.UNSAFE
        elif not known:
            verdict, reason, advice = Verdict.FAILED, lines.pop(0), failures[0].advice
        elif _is_idle(known):
            verdict = Verdict.IDLE
        return Report(
            handler=self._subscription.handler,
            route=self._subscription.route,
            verdict=verdict,
            reason=reason,
            advice=advice,
            events=tuple(item.label for item in events),
            schedules=self._schedules.tried.total(),
            tried={way: tried for way in Way if (tried := self._schedules.tried[way])},
            findings=findings,
            notes=(*lines, *self._checks.notes.values()),
            seconds=time.monotonic() - self._began,
            unguarded=self._guard.find_unguarded(),
        )


def _failure_lines(failures: Sequence[Failure]) -> list[str]:
    """Return each distinct failure once, with all the events on which it occurs."""
    labels: dict[str, list[str]] = {}
    for failure in failures:
        labels.setdefault(failure.message, []).append(failure.label)
    return [f"fails on {', '.join(on)}: {lines}" for lines, on in labels.items()]


def _idle_types(known: Sequence[KnownEvent]) -> list[str]:
    """Return the types on which the handler did nothing, even with invented rows."""
    types = dict.fromkeys(item.event.received.type for item in known if item.is_idle)
    busy = {item.event.received.type for item in known if not item.is_idle}
    return [type for type in types if type not in busy]


def _is_idle(known: Sequence[KnownEvent]) -> bool:
    """Return whether the handler returned at least once, and did nothing each time it returned."""
    returned = [item for item in known if item.ended.end is End.DONE]
    return bool(returned) and all(item.is_idle for item in returned)


def _path(ended: EndedRun) -> tuple[End, list[tuple[StepKind, str | None]]]:
    """Return how the run ended, and the lines of its steps."""
    return ended.end, [(step.kind, step.place) for step in ended.run.steps]


def _numbered(steps: Sequence[Step]) -> Iterator[tuple[int, Step]]:
    number = 0
    for step in steps:
        number += step.kind is StepKind.STATEMENT
        yield number, step


MOMENTS: Final = {
    StepKind.END: (False,),
    StepKind.STATEMENT: (True,),
    StepKind.CALL: (False, True),
}
"""When to kill: before the commit, after a statement, before and after a call."""
