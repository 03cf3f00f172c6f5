"""The ways in which a handler's body is run, each on a fresh database."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.base.errors import Retry
from gateway.config.registry import Subscription
from gateway.testing.rehearse.database import MadeUp, State
from gateway.testing.rehearse.events import RehearsedEvent
from gateway.testing.rehearse.pairs import Pair, Relation
from gateway.testing.rehearse.patches import LATER
from gateway.testing.rehearse.sandbox import End, EndedRun, RehearsalStage, RehearsedDelivery
from gateway.testing.rehearse.trace import Failing, Moment, Outage, RehearsedRun, Step, StepKind

ROUNDS: Final = 3
"""Maximum number of runs of a delivery that has to be retried.

If further runs help at all, they help within the first few.
"""

LOOK_S: Final = 0.005
PATIENCE_S: Final = 5.0
"""How long one run waits for another that neither ends nor waits for a lock.

The other run may wait for something else that the first one holds.
"""

AGAIN: Final = frozenset({End.FAILED, End.CONTENDED, End.DEFERRED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of one schedule."""

    words: str
    performances: tuple[EndedRun, ...]
    """All runs, in the order in which they started."""
    last: tuple[EndedRun, ...]
    """The last run of each delivery; of two concurrent runs, the last run of each."""
    state: State
    first_state: State | None = None
    """The state after the first of two events."""
    has_unknown_effects: bool = False
    """Whether there is an effect with an unknown outcome at the end."""


class Schedules:
    """Runs one handler by any schedule."""

    def __init__(self, stage: RehearsalStage, subscription: Subscription) -> None:
        self._stage = stage
        self._subscription = subscription
        self._attempts: Counter[int] = Counter()
        """The number of attempts that each delivery has used."""
        self.words: list[str] = []
        """The descriptions of the schedules that were run."""

    async def once(self, occasion: RehearsedEvent, *, is_skewed: bool = False) -> Trial:
        """Run the handler once: the reference."""
        delivered = await self._deliver(occasion, is_skewed=is_skewed)
        performance = await self._perform(delivered)
        return await self._trial("run once", [performance], [performance])

    async def twice(self, occasion: RehearsedEvent) -> Trial:
        """Run the handler twice, as after a replay or the restore of an older ledger."""
        delivered = await self._deliver(occasion)
        first = await self._stage.perform(delivered)
        second = await self._stage.perform(delivered)
        return await self._trial("run twice in a row", [first, second], [second])

    async def once_later(self, occasion: RehearsedEvent) -> Trial:
        """Run the handler once, by a clock that has advanced: the reference for a later replay."""
        delivered = await self._deliver(occasion)
        performance = await self._stage.perform_later(delivered)
        return await self._trial("run once", [performance], [performance])

    async def again_later(self, occasion: RehearsedEvent) -> Trial:
        """Run the handler twice, as after a retry in the next minute or a replay months later."""
        delivered = await self._deliver(occasion)
        first = await self._stage.perform(delivered)
        second = await self._stage.perform_later(delivered)
        words = f"run twice in a row, the second time {LATER.days} days later"
        return await self._trial(words, [first, second], [second])

    async def killed(
        self, occasion: RehearsedEvent, step: Step, number: int, *, is_after: bool
    ) -> Trial:
        """Kill a run, as by kill -9 of the worker, and run the handler again.

        `number` is the position of the statement among the statements.
        """
        delivered = await self._deliver(occasion)
        moment = Moment(step=step.number, is_after=is_after)
        first = await self._stage.perform(delivered, self._stage.make_run(kill_at=moment))
        again = await self._settled(delivered, await self._perform(delivered))
        words = f"killed {_moment_in_words(step, number, is_after=is_after)}, run again"
        trial = await self._trial(words, [first, *again], again[-1:])
        return replace(trial, has_unknown_effects=await self._stage.has_unknown_effects())

    async def timed_out(self, occasion: RehearsedEvent, end: Step) -> Trial:
        """Roll back the first attempt before its commit, as after a timeout, and run the second."""
        delivered = await self._deliver(occasion)
        moment = Moment(step=end.number, is_after=False)
        first = await self._stage.perform(delivered, self._stage.make_run(kill_at=moment))
        self._attempts[delivered.delivery_id] += 1
        again = await self._settled(delivered, await self._perform(delivered))
        words = "timed out before the commit, run again as its second attempt"
        trial = await self._trial(words, [first, *again], again[-1:])
        return replace(trial, has_unknown_effects=await self._stage.has_unknown_effects())

    async def at_once(self, occasion: RehearsedEvent, step: Step, number: int) -> Trial:
        """Run the handler twice at the same time.

        The first run waits after a statement while the second one proceeds, until the second one
        ends or must wait for a lock of the first one.
        """
        delivered = await self._deliver(occasion)
        words = f"run twice at the same time, {_waiting_in_words(step, number)}"
        return await self._overlap(words, delivered, delivered, step)

    async def both_at_once(self, pair: Pair, step: Step, number: int) -> Trial:
        """Run the handler on two different events at the same time, interleaved in the same way."""
        await self._prepare(pair)
        occasions = (pair.older, pair.newer)
        older, newer = [await self._stage.deliver(o, self._subscription) for o in occasions]
        words = f"{pair.words} at the same time, {_waiting_in_words(step, number)}"
        told = [newer.event.payload, older.event.payload]
        return await self._overlap(words, older, newer, step, told)

    async def failing(self, occasion: RehearsedEvent, step: Step, outage: Outage) -> Trial:
        """Fail the call of one step in the first run.

        In later runs the callee is available again.
        """
        delivered = await self._deliver(occasion)
        run = self._stage.make_run(failing=Failing(step=step.number, outage=outage))
        ended = await self._settled(delivered, await self._perform(delivered, run))
        place = f" ({step.place})" if step.place else ""
        words = f"{step.text} {outage.words}{place}{', run again' if len(ended) > 1 else ''}"
        trial = await self._trial(words, ended, ended[-1:])
        return replace(trial, has_unknown_effects=await self._stage.has_unknown_effects())

    async def _overlap(
        self,
        words: str,
        one: RehearsedDelivery,
        other: RehearsedDelivery,
        step: Step,
        told: Sequence[Any] = (),
    ) -> Trial:
        run = self._stage.make_run(pause_after=step.number)
        first = asyncio.create_task(self._perform(one, run, told=told))
        await _first_of(first, run)
        second = asyncio.create_task(self._perform(other, told=told))
        await self._let_go_on(second)
        run.resumed.set()
        ended = [await first, await second]
        firsts = await self._settled(one, ended[0])
        seconds = await self._settled(other, ended[1])
        last = [*firsts[-1:], *seconds[-1:]]
        return await self._trial(words, [*firsts, *seconds], last)

    async def both(
        self, pair: Pair, *, is_reversed: bool = False, is_skewed: bool = False
    ) -> Trial:
        """Run two events one after the other, in the order in which they happened or in reverse."""
        await self._prepare(pair, is_skewed=is_skewed)
        occasions = [pair.newer, pair.older] if is_reversed else [pair.older, pair.newer]
        delivered = [await self._stage.deliver(o, self._subscription) for o in occasions]
        newest_first = delivered if is_reversed else delivered[::-1]
        last: dict[int, EndedRun] = {}
        performances: list[EndedRun] = []
        first_state = None
        for _ in range(ROUNDS):
            for item in delivered:
                if item.delivery_id in last and last[item.delivery_id].end not in AGAIN:
                    continue
                arrived = {*last, item.delivery_id}
                told = [d.event.payload for d in newest_first if d.delivery_id in arrived]
                performance = await self._perform(item, told=told)
                performances.append(performance)
                last[item.delivery_id] = performance
                first_state = first_state or await self._stage.state()
        older, newer = pair.older.envelope.type, pair.newer.envelope.type
        words = f"{pair.words}, one after the other"
        if is_reversed and pair.relation is Relation.SUCCESSOR:
            words = f"later event first: {newer}, then an older {older} of the same object"
        trial = await self._trial(words, performances, list(last.values()))
        return replace(trial, first_state=first_state)

    async def _deliver(
        self, occasion: RehearsedEvent, *, is_skewed: bool = False
    ) -> RehearsedDelivery:
        await self._fresh(occasion.rows, is_skewed=is_skewed)
        return await self._stage.deliver(occasion, self._subscription)

    async def _prepare(self, pair: Pair, *, is_skewed: bool = False) -> None:
        await self._fresh(pair.older.rows, is_skewed=is_skewed)
        if pair.before is not None:
            delivered = await self._stage.deliver(pair.before, self._subscription)
            await self._settled(delivered, await self._perform(delivered))

    async def _fresh(self, rows: Sequence[MadeUp], *, is_skewed: bool = False) -> None:
        await self._stage.fresh(rows, is_skewed=is_skewed)
        self._attempts.clear()

    async def _settled(self, delivered: RehearsedDelivery, ended: EndedRun) -> list[EndedRun]:
        """Return the run, followed by the retries that the gateway would make if it failed."""
        performances = [ended]
        while performances[-1].end in AGAIN and len(performances) < ROUNDS:
            performances.append(await self._perform(delivered))
        return performances

    async def _perform(
        self,
        delivered: RehearsedDelivery,
        run: RehearsedRun | None = None,
        *,
        told: Sequence[Any] = (),
    ) -> EndedRun:
        """Run the body with the number of its attempt.

        Only a failure and a Retry use an attempt.
        """
        attempt = 1 + self._attempts[delivered.delivery_id]
        performance = await self._stage.perform(delivered, run, told=told, attempt=attempt)
        is_burned = performance.end is End.FAILED or isinstance(performance.raised, Retry)
        self._attempts[delivered.delivery_id] += is_burned
        return performance

    async def _let_go_on(self, task: "asyncio.Task[EndedRun]") -> None:
        patient_until = time.monotonic() + PATIENCE_S
        while time.monotonic() < patient_until:
            done, _ = await asyncio.wait({task}, timeout=LOOK_S)
            if done or await self._stage.is_blocked():
                return

    async def _trial(
        self, words: str, performances: Sequence[EndedRun], last: Sequence[EndedRun]
    ) -> Trial:
        self.words.append(words)
        return Trial(
            words=words,
            performances=tuple(performances),
            last=tuple(last),
            state=await self._stage.state(),
        )


async def _first_of(task: "asyncio.Task[EndedRun]", run: RehearsedRun) -> None:
    paused = asyncio.create_task(run.paused.wait())
    await asyncio.wait({task, paused}, return_when=asyncio.FIRST_COMPLETED)
    paused.cancel()


def _waiting_in_words(step: Step, number: int) -> str:
    place = f" ({step.place})" if step.place else ""
    return f"the first waiting after statement {number}{place}"


def _moment_in_words(step: Step, number: int, *, is_after: bool) -> str:
    place = f" ({step.place})" if step.place else ""
    if step.kind is StepKind.END:
        return "before the commit"
    if step.kind is StepKind.STATEMENT:
        return f"after statement {number}{place}"
    return f"{'after' if is_after else 'before'} {step.text}{place}"
