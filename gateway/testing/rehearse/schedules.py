"""The ways in which a handler's body is run, each on a fresh database."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from gateway.base.errors import Retry
from gateway.config.registry import Subscription
from gateway.testing.rehearse.database import InventedRow, State
from gateway.testing.rehearse.events import RehearsedEvent
from gateway.testing.rehearse.isolation import LATER
from gateway.testing.rehearse.pairs import Pair, Relation
from gateway.testing.rehearse.sandbox import End, EndedRun, RehearsedDelivery, Sandbox
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


class Way(StrEnum):
    """A way to run a handler again, with the name used in the report."""

    TWICE = "twice in a row"
    KILLED = "killed half-way"
    TIMED_OUT = "timed out before the commit"
    AT_ONCE = "twice at the same time"
    REVERSED = "a later event first"
    TOGETHER = "two events at the same time"
    OUTAGE = "calls that fail"


INTERRUPTING: Final = frozenset({Way.KILLED, Way.TIMED_OUT, Way.OUTAGE})
"""The ways after which an effect may be left whose outcome is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of one schedule."""

    words: str
    label: str
    """The event, or the types of the two events."""
    runs: tuple[EndedRun, ...]
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

    def __init__(self, sandbox: Sandbox, subscription: Subscription) -> None:
        self._sandbox = sandbox
        self._subscription = subscription
        self._attempts: Counter[int] = Counter()
        """The number of attempts that each delivery has used."""
        self.tried: Counter[Way | None] = Counter()
        """How often each way was tried. None is a reference: what a schedule is compared with."""

    async def once(
        self, event: RehearsedEvent, *, is_skewed: bool = False, is_later: bool = False
    ) -> Trial:
        """Run the handler once: the reference. With `is_later`, by a clock that has advanced."""
        delivered = await self._deliver(event, is_skewed=is_skewed)
        ended = await self._sandbox.run(delivered, is_later=is_later)
        return await self._trial("run once", None, event.label, [ended])

    async def twice(self, event: RehearsedEvent, *, is_later: bool = False) -> Trial:
        """Run the handler twice, as after a replay or the restore of an older ledger.

        With `is_later`, the clock has advanced in between, as for a replay months later.
        """
        delivered = await self._deliver(event)
        runs = [await self._sandbox.run(delivered, is_later=n == 1 and is_later) for n in range(2)]
        when = f", the second time {LATER.days} days later" if is_later else ""
        return await self._trial(f"run twice in a row{when}", Way.TWICE, event.label, runs)

    async def killed(
        self, event: RehearsedEvent, step: Step, number: int, *, is_after: bool
    ) -> Trial:
        """Kill a run, as by kill -9 of the worker, and run the handler again.

        `number` is the position of the statement among the statements.
        """
        words = f"killed {_moment_in_words(step, number, is_after=is_after)}, run again"
        return await self._interrupted(words, Way.KILLED, event, step, is_after=is_after)

    async def timed_out(self, event: RehearsedEvent, end: Step) -> Trial:
        """Roll back the first attempt before its commit, as after a timeout, and run the second."""
        words = "timed out before the commit, run again as its second attempt"
        return await self._interrupted(words, Way.TIMED_OUT, event, end, is_after=False)

    async def at_once(self, event: RehearsedEvent, step: Step, number: int) -> Trial:
        """Run the handler twice at the same time.

        The first run waits after a statement while the second one proceeds, until the second one
        ends or must wait for a lock of the first one.
        """
        delivered = await self._deliver(event)
        words = f"run twice at the same time, {_waiting_in_words(step, number)}"
        return await self._overlap(words, Way.AT_ONCE, event.label, delivered, delivered, step)

    async def both_at_once(self, pair: Pair, step: Step, number: int) -> Trial:
        """Run the handler on two different events at the same time, interleaved in the same way."""
        await self._prepare(pair)
        events = (pair.older, pair.newer)
        older, newer = [await self._sandbox.deliver(o, self._subscription) for o in events]
        words = f"{pair.words} at the same time, {_waiting_in_words(step, number)}"
        known = [newer.event.payload, older.event.payload]
        return await self._overlap(words, Way.TOGETHER, pair.label, older, newer, step, known)

    async def failing(self, event: RehearsedEvent, step: Step, outage: Outage) -> Trial:
        """Fail the call of one step in the first run.

        In later runs the callee is available again.
        """
        delivered = await self._deliver(event)
        run = self._sandbox.make_run(failing=Failing(step=step.number, outage=outage))
        ended = await self._settled(delivered, await self._run(delivered, run))
        words = f"{step.text} {outage.words}{step.at}{', run again' if len(ended) > 1 else ''}"
        return await self._trial(words, Way.OUTAGE, event.label, ended)

    async def _interrupted(
        self, words: str, way: Way, event: RehearsedEvent, step: Step, *, is_after: bool
    ) -> Trial:
        delivered = await self._deliver(event)
        run = self._sandbox.make_run(kill_at=Moment(step=step.number, is_after=is_after))
        first = await self._sandbox.run(delivered, run)
        self._attempts[delivered.delivery_id] += way is Way.TIMED_OUT
        again = await self._settled(delivered, await self._run(delivered))
        return await self._trial(words, way, event.label, [first, *again])

    async def _overlap(
        self,
        words: str,
        way: Way,
        label: str,
        one: RehearsedDelivery,
        other: RehearsedDelivery,
        step: Step,
        known: Sequence[Any] = (),
    ) -> Trial:
        run = self._sandbox.make_run(pause_after=step.number)
        first = asyncio.create_task(self._run(one, run, known=known))
        await _first_of(first, run)
        second = asyncio.create_task(self._run(other, known=known))
        await self._let_go_on(second)
        run.resumed.set()
        ended = [await first, await second]
        firsts = await self._settled(one, ended[0])
        seconds = await self._settled(other, ended[1])
        last = [firsts[-1], seconds[-1]]
        return await self._trial(words, way, label, [*firsts, *seconds], last)

    async def both(
        self, pair: Pair, *, is_reversed: bool = False, is_skewed: bool = False
    ) -> Trial:
        """Run two events one after the other, in the order in which they happened or in reverse."""
        await self._prepare(pair, is_skewed=is_skewed)
        events = [pair.newer, pair.older] if is_reversed else [pair.older, pair.newer]
        delivered = [await self._sandbox.deliver(o, self._subscription) for o in events]
        newest_first = delivered if is_reversed else delivered[::-1]
        last: dict[int, EndedRun] = {}
        runs: list[EndedRun] = []
        first_state = None
        for _ in range(ROUNDS):
            for item in delivered:
                if item.delivery_id in last and last[item.delivery_id].end not in AGAIN:
                    continue
                arrived = {*last, item.delivery_id}
                known = [d.event.payload for d in newest_first if d.delivery_id in arrived]
                ended = await self._run(item, known=known)
                runs.append(ended)
                last[item.delivery_id] = ended
                first_state = first_state or await self._sandbox.database.state()
        older, newer = pair.older.received.type, pair.newer.received.type
        words, way, label = f"{pair.words}, one after the other", None, pair.label
        if is_reversed and pair.relation is Relation.SUCCESSOR:
            words = f"later event first: {newer}, then an older {older} of the same object"
            way, label = Way.REVERSED, pair.older.label
        trial = await self._trial(words, way, label, runs, list(last.values()))
        return replace(trial, first_state=first_state)

    async def _deliver(
        self, event: RehearsedEvent, *, is_skewed: bool = False
    ) -> RehearsedDelivery:
        await self._fresh(event.rows, is_skewed=is_skewed)
        return await self._sandbox.deliver(event, self._subscription)

    async def _prepare(self, pair: Pair, *, is_skewed: bool = False) -> None:
        await self._fresh(pair.older.rows, is_skewed=is_skewed)
        if pair.before is not None:
            delivered = await self._sandbox.deliver(pair.before, self._subscription)
            await self._settled(delivered, await self._run(delivered))

    async def _fresh(self, rows: Sequence[InventedRow], *, is_skewed: bool = False) -> None:
        await self._sandbox.fresh(rows, is_skewed=is_skewed)
        self._attempts.clear()

    async def _settled(self, delivered: RehearsedDelivery, ended: EndedRun) -> list[EndedRun]:
        """Return the run, followed by the retries that the gateway would make if it failed."""
        runs = [ended]
        while runs[-1].end in AGAIN and len(runs) < ROUNDS:
            runs.append(await self._run(delivered))
        return runs

    async def _run(
        self,
        delivered: RehearsedDelivery,
        run: RehearsedRun | None = None,
        *,
        known: Sequence[Any] = (),
    ) -> EndedRun:
        """Run the body with the number of its attempt.

        Only a failure and a Retry use an attempt.
        """
        attempt = 1 + self._attempts[delivered.delivery_id]
        ended = await self._sandbox.run(delivered, run, known=known, attempt=attempt)
        is_burned = ended.end is End.FAILED or isinstance(ended.raised, Retry)
        self._attempts[delivered.delivery_id] += is_burned
        return ended

    async def _let_go_on(self, task: "asyncio.Task[EndedRun]") -> None:
        patient_until = time.monotonic() + PATIENCE_S
        while time.monotonic() < patient_until:
            done, _ = await asyncio.wait({task}, timeout=LOOK_S)
            if done or await self._sandbox.is_blocked():
                return

    async def _trial(
        self,
        words: str,
        way: Way | None,
        label: str,
        runs: Sequence[EndedRun],
        last: Sequence[EndedRun] | None = None,
    ) -> Trial:
        self.tried[way] += 1
        unknown = way in INTERRUPTING and await self._sandbox.has_unknown_effects()
        return Trial(
            words=words,
            label=label,
            runs=tuple(runs),
            last=tuple(last or runs[-1:]),
            state=await self._sandbox.database.state(),
            has_unknown_effects=unknown,
        )


async def _first_of(task: "asyncio.Task[EndedRun]", run: RehearsedRun) -> None:
    paused = asyncio.create_task(run.paused.wait())
    await asyncio.wait({task, paused}, return_when=asyncio.FIRST_COMPLETED)
    paused.cancel()


def _waiting_in_words(step: Step, number: int) -> str:
    return f"the first waiting after statement {number}{step.at}"


def _moment_in_words(step: Step, number: int, *, is_after: bool) -> str:
    if step.kind is StepKind.END:
        return "before the commit"
    if step.kind is StepKind.STATEMENT:
        return f"after statement {number}{step.at}"
    return f"{'after' if is_after else 'before'} {step.text}{step.at}"
