"""Rehearse one handler: choose the schedules to try, and report their results."""

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.config.registry import Subscription
from gateway.testing.rehearse.database import Masks, learn, merge
from gateway.testing.rehearse.events import MOST_EVENTS, RehearsedEvent, evenly, without_sample
from gateway.testing.rehearse.findings import (
    BLOCKING_ADVICE,
    KEPT,
    REPEATS,
    SKIPPED,
    Fault,
    Report,
    Situation,
    Verdict,
    count_ways,
    of_escape,
)
from gateway.testing.rehearse.guard import RehearsalGuard
from gateway.testing.rehearse.judge import Grouping, Judge, ReferenceRun, by_place, by_text
from gateway.testing.rehearse.pairs import (
    Pair,
    Relation,
    find_pairs,
    find_relatives,
    run_in_turn,
    without_pair,
)
from gateway.testing.rehearse.sandbox import End, EndedRun, RehearsalStage
from gateway.testing.rehearse.schedules import Schedules, Trial
from gateway.testing.rehearse.single_runs import Failure, KnownHandler, SingleRuns
from gateway.testing.rehearse.trace import Step, StepKind

MOST_STEPS: Final = 25
BUDGET_S: Final = 30.0
"""Time limit for one handler. It may be one that sleeps."""

Signature = tuple[tuple[str, StepKind, str, str | None, bool], ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way to run the handler, and the check of its result."""

    kind: str
    run: Callable[[], Coroutine[Any, Any, Trial]]
    weigh: Callable[[Trial], None]


class Rehearsal:
    """The rehearsal of one handler on one route."""

    def __init__(
        self,
        stage: RehearsalStage,
        guard: RehearsalGuard,
        subscription: Subscription,
        *,
        root: Path,
        started_at: datetime,
    ) -> None:
        self._stage = stage
        self._guard = guard
        self._subscription = subscription
        self._root = root
        self._started_at = started_at
        self._began = time.monotonic()
        self._schedules = Schedules(stage, subscription)
        self._judge = Judge(root=root)
        self._acquaintance = SingleRuns(stage, self._schedules, self._judge)
        self._tried: set[Signature] = set()
        self._left_out: Counter[str] = Counter()

    async def rehearse(self, occasions: Sequence[RehearsedEvent]) -> Report:
        """Try the handler on these events, and on pairs that are derived from them."""
        self._guard.clear()
        chosen = self._chosen(occasions)
        known = await self._acquaintance.make(chosen)
        tried = known
        if self._judge.has_found(Fault.MEMORY):
            self._judge.note("nothing else was tried: what the handler remembers decides the rest")
            tried = []
        for item in tried:
            twice = partial(self._schedules.twice, item.occasion)
            await self._try(Schedule("with two runs", twice, partial(self._weigh, item)))
            await self._try_later(item)
        for item in tried:
            for schedule in self._interruptions(item):
                await self._try(schedule)
        await self._try_pairs(tried)
        if self._left_out:
            kinds = ", ".join(f"{number} {kind}" for kind, number in self._left_out.items())
            self._judge.note(f"schedules were left out after {BUDGET_S:g} s: {kinds}")
        if what := ", ".join(self._judge.repeats):
            self._judge.note(REPEATS.format(what=what))
        self._add_escapes(chosen)
        if idle := _idle_types(known):
            types = ", ".join(idle)
            self._judge.note(f"wrote nothing and sent nothing on {types}: nothing was tried there")
        return self._report(chosen, known)

    def _chosen(self, occasions: Sequence[RehearsedEvent]) -> list[RehearsedEvent]:
        chosen = evenly(occasions, MOST_EVENTS)
        if len(chosen) < len(occasions):
            self._judge.note(f"tried on {len(chosen)} of {len(occasions)} types, spread evenly")
        for type in without_sample(self._subscription, occasions):
            self._judge.note(f"not tried on {type}, of which there is no sample")
        return chosen

    async def _try_later(self, known: KnownHandler) -> None:
        """Run the handler again by a later clock: a key that is made of the time is another one.

        A handler that takes another path at that time, because the event is too old for it, is not
        compared.
        """
        if self._is_over:
            self._left_out["with two runs"] += 1
            return
        later = await self._schedules.once_later(known.occasion)
        if _path(later.performances[0]) != _path(known.standard.trial.performances[0]):
            return
        again = partial(self._schedules.again_later, known.occasion)
        label = known.occasion.label
        weigh = partial(
            self._judge.weigh_later, self._stage.tables, known.standard, later, event=label
        )
        await self._try(Schedule("with two runs", again, weigh))

    def _interruptions(self, known: KnownHandler) -> Iterator[Schedule]:
        """Yield the schedules that stop, pause or fail a run at each of its steps."""
        occasion, label = known.occasion, known.occasion.label
        [performance] = known.standard.trial.performances
        if not self._is_new("alone", performance):
            return
        steps = self._chosen_steps(performance)
        for number, step in steps:
            for is_after in _moments(step):
                killed = partial(self._schedules.killed, occasion, step, number, is_after=is_after)
                yield Schedule("with a killed run", killed, partial(self._weigh, known))
        is_alone = run_in_turn(self._subscription, occasion)
        for number, step in steps:
            if step.kind is StepKind.STATEMENT and not is_alone:
                at_once = partial(self._schedules.at_once, occasion, step, number)
                race = partial(self._weigh, known, fault=Fault.RACE)
                yield Schedule("with two runs at once", at_once, race)
        if performance.end is not End.DONE:
            return
        late = partial(self._schedules.timed_out, occasion, performance.run.steps[-1])
        yield Schedule("with a second attempt", late, partial(self._weigh, known))
        for _, step in steps:
            for outage in step.outages:
                failing = partial(self._schedules.failing, occasion, step, outage)
                weigh = partial(
                    self._judge.weigh_outage, self._stage.tables, known.standard, event=label
                )
                yield Schedule("with a failing callee", failing, weigh)

    def _is_new(self, relation: str, *performances: EndedRun) -> bool:
        """Return whether these runs have statements, calls or lines not seen in an earlier one."""
        signature = tuple(
            (relation, step.kind, step.text, step.place, bool(step.rows))
            for performance in performances
            for step in performance.run.steps
        )
        is_new = signature not in self._tried
        self._tried.add(signature)
        return is_new

    def _chosen_steps(self, performance: EndedRun) -> list[tuple[int, Step]]:
        """Return the chosen steps, each with the number of statements up to it."""
        steps = list(_numbered(performance.run.steps))
        chosen = evenly(steps, MOST_STEPS)
        if len(chosen) < len(steps):
            self._judge.note(
                f"stopped at {len(chosen)} of {len(steps)} statements and calls, spread evenly"
            )
        return chosen

    async def _try_pairs(self, known: Sequence[KnownHandler]) -> None:
        masks = merge(item.standard.masks for item in known)
        group = by_place if any(i.standard.group is by_place for i in known) else by_text
        occasions = [item.occasion for item in known]
        pairs = find_pairs(self._subscription, occasions, self._started_at)
        self._note_order(known, pairs)
        for item in known:
            [performance] = item.standard.trial.performances
            is_busy = performance.end is End.DONE and not item.is_idle
            if is_busy and self._is_new("related", performance):
                pairs += filter(self._is_run, find_relatives(item.occasion))
        for pair in pairs:
            await self._try_pair(pair, masks, group)

    def _is_run(self, pair: Pair) -> bool:
        """Return whether the gateway runs both events.

        Adds a note if it skips the event of another object.
        """
        is_once = pair.is_once(self._subscription)
        if is_once and pair.relation is Relation.SIBLING:
            path = self._subscription.once_per
            self._judge.note(SKIPPED.format(words=pair.words, path=path), "once_per")
        return not is_once

    async def _try_pair(self, pair: Pair, masks: Masks, group: Grouping) -> None:
        """Run two events one after the other in both orders, and then at the same time.

        At the same time, the result must equal that of one of the two orders.
        """
        in_order = await self._in_order(pair)
        if in_order is None:
            return
        other = await self._schedules.both(pair, is_skewed=True)
        masks = merge([masks, learn(self._stage.tables, in_order.state, other.state)])
        standard = ReferenceRun(trial=in_order, masks=masks, group=group)
        self._judge.weigh_repeat(self._stage.tables, standard, pair)
        in_reverse = await self._schedules.both(pair, is_reversed=True)
        if pair.relation is Relation.SUCCESSOR:
            self._judge.weigh(
                self._stage.tables,
                standard,
                in_reverse,
                pair.older.label,
                Fault.ORDER,
                is_one_time=pair.is_one_time,
            )
        elif pair.relation is Relation.SIBLING:
            self._judge.weigh_jobs(self._stage.tables, standard, in_reverse, pair.label)
            self._judge.weigh_keys(in_order, pair.label)
            self._note_kept(pair, in_order)
        firsts = in_order.performances[0]
        if run_in_turn(self._subscription, pair.older, pair.newer) or not self._is_new(
            pair.relation, *in_order.performances
        ):
            return
        serial = [standard, replace(standard, trial=in_reverse)]
        for number, step in self._chosen_steps(firsts):
            if step.kind is StepKind.STATEMENT:
                at_once = partial(self._schedules.both_at_once, pair, step, number)
                weigh = partial(
                    self._judge.weigh_overlap, self._stage.tables, serial, event=pair.label
                )
                await self._try(Schedule("with two events at once", at_once, weigh))

    def _note_kept(self, pair: Pair, trial: Trial) -> None:
        """Note each effect that another object does not get, because of its `per`."""
        for once in trial.last[-1].run.kept:
            if once.per is not None:
                self._judge.note(KEPT.format(words=pair.words, name=once.name), f"per {once.name}")

    def _note_order(self, known: Sequence[KnownHandler], pairs: Sequence[Pair]) -> None:
        busy = [i.occasion for i in known if _end(i) is End.DONE and not i.is_idle]
        if types := without_pair(self._subscription, busy, pairs):
            told = ", ".join(types)
            self._judge.note(f"order not tried on {told}: no later event of the object is there")

    async def _in_order(self, pair: Pair) -> Trial | None:
        """Run the reference of a pair. Returns None if a run fails or the time limit is reached."""
        if self._is_over:
            self._left_out["with two events"] += 1
            return None
        trial = await self._schedules.both(pair)
        for performance in trial.last:
            if performance.end in {End.FAILED, End.LATE}:
                types = f"{pair.older.label}, then {pair.newer.label} of the same object"
                if pair.relation is not Relation.SUCCESSOR:
                    types = f"{pair.words} ({pair.label}), one after the other"
                self._judge.note(f"fails on {types}: {performance.error}")
        ends = {performance.end for performance in trial.last}
        return trial if ends <= {End.DONE, End.REJECTED} else None

    async def _try(self, schedule: Schedule) -> None:
        if self._is_over:
            self._left_out[schedule.kind] += 1
            return
        schedule.weigh(await schedule.run())

    def _weigh(self, known: KnownHandler, trial: Trial, fault: Fault | None = None) -> None:
        label = known.occasion.label
        self._judge.weigh(self._stage.tables, known.standard, trial, label, fault)

    @property
    def _is_over(self) -> bool:
        return time.monotonic() - self._began > BUDGET_S

    def _add_escapes(self, occasions: Sequence[RehearsedEvent]) -> None:
        situation = Situation(schedule="run once", event=occasions[0].label, root=self._root)
        for escape in self._guard.found():
            self._judge.add(of_escape(situation, escape))
        for call in self._guard.blocking.values():
            self._judge.note(f"{call.function} ({call.place}) {BLOCKING_ADVICE}")

    def _report(self, occasions: Sequence[RehearsedEvent], known: Sequence[KnownHandler]) -> Report:
        findings = tuple(self._judge.findings.values())
        failures = self._acquaintance.failures
        told = _told(failures)
        verdict, reason, advice = Verdict.SAFE, None, None
        if findings:
            verdict = Verdict.UNSAFE
        elif not known:
            verdict, reason, advice = Verdict.FAILED, told.pop(0), failures[0].advice
        elif _is_idle(known):
            verdict = Verdict.IDLE
        return Report(
            handler=self._subscription.handler,
            route=self._subscription.route,
            verdict=verdict,
            reason=reason,
            advice=advice,
            events=tuple(item.label for item in occasions),
            schedules=len(self._schedules.words),
            tried=count_ways(self._schedules.words),
            findings=findings,
            notes=(*told, *self._judge.notes.values()),
            seconds=time.monotonic() - self._began,
            unguarded=self._guard.find_unguarded(),
        )


def _told(failures: Sequence[Failure]) -> list[str]:
    """Return each distinct failure once, with all the events on which it occurs."""
    labels: dict[str, list[str]] = {}
    for failure in failures:
        labels.setdefault(failure.told, []).append(failure.label)
    return [f"fails on {', '.join(on)}: {told}" for told, on in labels.items()]


def _idle_types(known: Sequence[KnownHandler]) -> list[str]:
    """Return the types on which the handler did nothing, even with invented rows."""
    types = dict.fromkeys(item.occasion.envelope.type for item in known if item.is_idle)
    busy = {item.occasion.envelope.type for item in known if not item.is_idle}
    return [type for type in types if type not in busy]


def _is_idle(known: Sequence[KnownHandler]) -> bool:
    """Return whether the handler returned at least once, and did nothing each time it returned."""
    returned = [item for item in known if _end(item) is End.DONE]
    return bool(returned) and all(item.is_idle for item in returned)


def _end(known: KnownHandler) -> End:
    return known.standard.trial.performances[0].end


def _path(performance: EndedRun) -> tuple[End, list[tuple[StepKind, str | None]]]:
    """Return how the run ended, and the lines of its steps."""
    return performance.end, [(step.kind, step.place) for step in performance.run.steps]


def _numbered(steps: Sequence[Step]) -> Iterator[tuple[int, Step]]:
    number = 0
    for step in steps:
        number += step.kind is StepKind.STATEMENT
        yield number, step


def _moments(step: Step) -> tuple[bool, ...]:
    """Return when to kill: before the commit, after a statement, before and after a call."""
    match step.kind:
        case StepKind.END:
            return (False,)
        case StepKind.STATEMENT:
            return (True,)
    return (False, True)
