"""Rehearses one handler: which schedules are worth trying, and what they say of it."""

import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.registry import Subscription
from gateway.testing.rehearse.acquaintance import Acquaintance, Failure, Known
from gateway.testing.rehearse.events import (
    MOST_EVENTS,
    Occasion,
    Pair,
    evenly,
    find_pairs,
    without_pair,
    without_sample,
)
from gateway.testing.rehearse.findings import Fault, Situation, of_escape
from gateway.testing.rehearse.guard import Guard
from gateway.testing.rehearse.judge import Judge, Standard, by_place, by_text
from gateway.testing.rehearse.report import Report, Verdict
from gateway.testing.rehearse.schedules import Schedules, Trial
from gateway.testing.rehearse.stage import End, Performance, Stage
from gateway.testing.rehearse.tables import merge
from gateway.testing.rehearse.trace import Kind, Step

MOST_STEPS: Final = 25
BUDGET_S: Final = 30.0
"""After that a handler is given up on: it may be one that sleeps."""

Attempt = Callable[[], Coroutine[Any, Any, Trial]]
Signature = tuple[tuple[Kind, str, str | None], ...]


class Rehearsal:
    """One handler on one route."""

    def __init__(
        self,
        stage: Stage,
        guard: Guard,
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
        self._acquaintance = Acquaintance(stage, self._schedules, self._judge)
        self._tried: set[Signature] = set()
        self._left_out = 0

    async def rehearse(self, occasions: Sequence[Occasion]) -> Report:
        """Tries the handler on these events, and on pairs that are made of them."""
        self._guard.escapes.clear()
        chosen = self._chosen(occasions)
        known = await self._acquaintance.make(chosen)
        for item in known:
            await self._try(item, None, partial(self._schedules.twice, item.occasion))
        for item in known:
            for fault, attempt in self._interruptions(item):
                await self._try(item, fault, attempt)
        await self._try_pairs(known)
        if self._left_out:
            self._judge.note(f"{self._left_out} schedules were left out after {BUDGET_S:g} s")
        self._add_escapes(chosen)
        if idle := _idle_types(known):
            types = ", ".join(idle)
            self._judge.note(f"wrote nothing and sent nothing on {types}: nothing was tried there")
        return self._report(chosen, known)

    def _chosen(self, occasions: Sequence[Occasion]) -> list[Occasion]:
        chosen = evenly(occasions, MOST_EVENTS)
        if len(chosen) < len(occasions):
            self._judge.note(f"tried on {len(chosen)} of {len(occasions)} types, spread evenly")
        for type in without_sample(self._subscription, occasions):
            self._judge.note(f"not tried on {type}, of which there is no sample")
        return chosen

    def _interruptions(self, known: Known) -> Iterator[tuple[Fault | None, Attempt]]:
        """A run that is stopped at each of its steps, for ever or for a while."""
        occasion = known.occasion
        [performance] = known.standard.trial.performances
        signature = tuple((s.kind, s.text, s.place) for s in performance.run.steps)
        if signature in self._tried:
            return  # the same statements and calls, from the same lines
        self._tried.add(signature)
        steps = self._chosen_steps(performance)
        for number, step in steps:
            for is_after in _moments(step):
                yield (
                    None,
                    partial(self._schedules.killed, occasion, step, number, is_after=is_after),
                )
        for number, step in steps:
            if step.kind is Kind.STATEMENT:
                yield Fault.RACE, partial(self._schedules.at_once, occasion, step, number)

    def _chosen_steps(self, performance: Performance) -> list[tuple[int, Step]]:
        """With the number of each statement among the statements."""
        steps = list(_numbered(performance.run.steps))
        chosen = evenly(steps, MOST_STEPS)
        if len(chosen) < len(steps):
            self._judge.note(
                f"stopped at {len(chosen)} of {len(steps)} statements and calls, spread evenly"
            )
        return chosen

    async def _try_pairs(self, known: Sequence[Known]) -> None:
        masks = merge(item.standard.masks for item in known)
        is_volatile = any(item.standard.group is by_place for item in known)
        occasions = [item.occasion for item in known]
        pairs = find_pairs(self._subscription, occasions, self._started_at)
        self._note_order(known, pairs)
        for pair in pairs:
            trial = await self._in_order(pair)
            if trial is not None:
                group = by_place if is_volatile else by_text
                standard = Standard(trial=trial, masks=masks, group=group)
                in_order = Known(occasion=pair.older, standard=standard)
                attempt = partial(self._schedules.both, pair, is_reversed=True)
                await self._try(in_order, Fault.ORDER, attempt, is_one_time=pair.is_one_time)

    def _note_order(self, known: Sequence[Known], pairs: Sequence[Pair]) -> None:
        busy = [i.occasion for i in known if _end(i) is End.DONE and not i.is_idle]
        if types := without_pair(self._subscription, busy, pairs):
            told = ", ".join(types)
            self._judge.note(f"order not tried on {told}: no later event of the object is there")

    async def _in_order(self, pair: Pair) -> Trial | None:
        """The reference of a pair; None where it does not come to an end, or there is no time."""
        if self._is_over:
            self._left_out += 2
            return None
        trial = await self._schedules.both(pair, is_reversed=False)
        for performance in trial.last:
            if performance.end in {End.FAILED, End.LATE}:
                types = f"{pair.older.label}, then {pair.newer.label} of the same object"
                self._judge.note(f"fails on {types}: {performance.error}")
        ends = {performance.end for performance in trial.last}
        return trial if ends <= {End.DONE, End.REJECTED} else None

    async def _try(
        self,
        known: Known,
        fault: Fault | None,
        attempt: Attempt,
        *,
        is_one_time: bool = False,
    ) -> None:
        if self._is_over:
            self._left_out += 1
            return
        trial, label = await attempt(), known.occasion.label
        self._judge.weigh(
            self._stage.tables, known.standard, trial, label, fault, is_one_time=is_one_time
        )

    @property
    def _is_over(self) -> bool:
        return time.monotonic() - self._began > BUDGET_S

    def _add_escapes(self, occasions: Sequence[Occasion]) -> None:
        situation = Situation(schedule="run once", event=occasions[0].label, root=self._root)
        for escape in self._guard.escapes.values():
            self._judge.add(of_escape(situation, escape))

    def _report(self, occasions: Sequence[Occasion], known: Sequence[Known]) -> Report:
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
            schedules=self._schedules.count,
            findings=findings,
            notes=(*told, *self._judge.notes.values()),
            seconds=time.monotonic() - self._began,
        )


def _told(failures: Sequence[Failure]) -> list[str]:
    """Each way to fail once, with all the events on which it is seen."""
    labels: dict[str, list[str]] = {}
    for failure in failures:
        labels.setdefault(failure.told, []).append(failure.label)
    return [f"fails on {', '.join(on)}: {told}" for told, on in labels.items()]


def _idle_types(known: Sequence[Known]) -> list[str]:
    """The types on which the handler did nothing, also not with rows that were made up."""
    types = dict.fromkeys(item.occasion.envelope.type for item in known if item.is_idle)
    busy = {item.occasion.envelope.type for item in known if not item.is_idle}
    return [type for type in types if type not in busy]


def _is_idle(known: Sequence[Known]) -> bool:
    """Whether the handler returned at least once, and never having done anything."""
    returned = [item for item in known if _end(item) is End.DONE]
    return bool(returned) and all(item.is_idle for item in returned)


def _end(known: Known) -> End:
    return known.standard.trial.performances[0].end


def _numbered(steps: Sequence[Step]) -> Iterator[tuple[int, Step]]:
    number = 0
    for step in steps:
        number += step.kind is Kind.STATEMENT
        yield number, step


def _moments(step: Step) -> tuple[bool, ...]:
    """Before the commit; after a statement; before and after a call."""
    match step.kind:
        case Kind.END:
            return (False,)
        case Kind.STATEMENT:
            return (True,)
    return (False, True)
