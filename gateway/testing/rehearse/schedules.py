"""The ways in which a handler's body is run, each on a fresh database."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.registry import Subscription
from gateway.testing.rehearse.events import Occasion, Pair
from gateway.testing.rehearse.stage import Delivered, End, Performance, Stage
from gateway.testing.rehearse.tables import State
from gateway.testing.rehearse.trace import Kind, Moment, Run, Step

ROUNDS: Final = 3
"""How often what has to be run again is: as long as that helps, it helps sooner."""

LOOK_S: Final = 0.005
PATIENCE_S: Final = 5.0
"""How long one run waits for another that neither ends nor waits for a lock: it may wait for
something else that the first one holds."""

AGAIN: Final = frozenset({End.FAILED, End.CONTENDED, End.DEFERRED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of one schedule."""

    words: str
    performances: tuple[Performance, ...]
    """Every run, in the order of their beginning."""
    last: tuple[Performance, ...]
    """The last run of each delivery, and of each of two at once."""
    state: State
    first_state: State | None = None
    """After the first of two events."""


class Schedules:
    """Runs one handler by any schedule."""

    def __init__(self, stage: Stage, subscription: Subscription) -> None:
        self._stage = stage
        self._subscription = subscription
        self.count = 0

    async def once(self, occasion: Occasion, *, is_skewed: bool = False) -> Trial:
        """The reference."""
        delivered = await self._deliver(occasion, is_skewed=is_skewed)
        performance = await self._stage.perform(delivered)
        return await self._trial("run once", [performance], [performance])

    async def twice(self, occasion: Occasion) -> Trial:
        """As after a replay, or a restore of an older ledger."""
        delivered = await self._deliver(occasion)
        first = await self._stage.perform(delivered)
        second = await self._stage.perform(delivered)
        return await self._trial("run twice in a row", [first, second], [second])

    async def killed(self, occasion: Occasion, step: Step, number: int, *, is_after: bool) -> Trial:
        """As by kill -9 of the worker. `number` is that of the statement among the statements."""
        delivered = await self._deliver(occasion)
        moment = Moment(step=step.number, is_after=is_after)
        first = await self._stage.perform(delivered, self._stage.make_run(kill_at=moment))
        again = await self._settled(delivered, await self._stage.perform(delivered))
        words = f"killed {_moment_in_words(step, number, is_after=is_after)}, run again"
        return await self._trial(words, [first, *again], again[-1:])

    async def at_once(self, occasion: Occasion, step: Step, number: int) -> Trial:
        """One run waits after a statement while another has its way, or until that one must wait
        for the first one's locks."""
        delivered = await self._deliver(occasion)
        run = self._stage.make_run(pause_after=step.number)
        first = asyncio.create_task(self._stage.perform(delivered, run))
        await _first_of(first, run)
        second = asyncio.create_task(self._stage.perform(delivered))
        await self._let_go_on(second)
        run.resumed.set()
        ended = [await first, await second]
        firsts = await self._settled(delivered, ended[0])
        seconds = await self._settled(delivered, ended[1])
        words = f"run twice at the same time, the first waiting after statement {number}"
        words += f" ({step.place})" if step.place else ""
        last = [*firsts[-1:], *seconds[-1:]]
        return await self._trial(words, [*firsts, *seconds], last)

    async def both(self, pair: Pair, *, is_reversed: bool) -> Trial:
        """Two events of one object, as they happened or the other way round."""
        await self._stage.fresh(pair.older.rows)
        occasions = [pair.newer, pair.older] if is_reversed else [pair.older, pair.newer]
        delivered = [await self._stage.deliver(o, self._subscription) for o in occasions]
        newest_first = delivered if is_reversed else delivered[::-1]
        last: dict[int, Performance] = {}
        performances: list[Performance] = []
        first_state = None
        for _ in range(ROUNDS):
            for item in delivered:
                if item.delivery_id in last and last[item.delivery_id].end not in AGAIN:
                    continue
                arrived = {*last, item.delivery_id}
                told = [d.event.payload for d in newest_first if d.delivery_id in arrived]
                performance = await self._stage.perform(item, told=told)
                performances.append(performance)
                last[item.delivery_id] = performance
                first_state = first_state or await self._stage.state()
        older, newer = pair.older.envelope.type, pair.newer.envelope.type
        words = "two events of one object, in order"
        if is_reversed:
            words = f"later event first: {newer}, then an older {older} of the same object"
        trial = await self._trial(words, performances, list(last.values()))
        return replace(trial, first_state=first_state)

    async def _deliver(self, occasion: Occasion, *, is_skewed: bool = False) -> Delivered:
        await self._stage.fresh(occasion.rows, is_skewed=is_skewed)
        return await self._stage.deliver(occasion, self._subscription)

    async def _settled(self, delivered: Delivered, ended: Performance) -> list[Performance]:
        """With the runs that the gateway would add where this one failed."""
        performances = [ended]
        while performances[-1].end in AGAIN and len(performances) < ROUNDS:
            performances.append(await self._stage.perform(delivered))
        return performances

    async def _let_go_on(self, task: "asyncio.Task[Performance]") -> None:
        patient_until = time.monotonic() + PATIENCE_S
        while time.monotonic() < patient_until:
            done, _ = await asyncio.wait({task}, timeout=LOOK_S)
            if done or await self._stage.is_blocked():
                return

    async def _trial(
        self, words: str, performances: Sequence[Performance], last: Sequence[Performance]
    ) -> Trial:
        self.count += 1
        return Trial(
            words=words,
            performances=tuple(performances),
            last=tuple(last),
            state=await self._stage.state(),
        )


async def _first_of(task: "asyncio.Task[Performance]", run: Run) -> None:
    paused = asyncio.create_task(run.paused.wait())
    await asyncio.wait({task, paused}, return_when=asyncio.FIRST_COMPLETED)
    paused.cancel()


def _moment_in_words(step: Step, number: int, *, is_after: bool) -> str:
    place = f" ({step.place})" if step.place else ""
    if step.kind is Kind.END:
        return "before the commit"
    if step.kind is Kind.STATEMENT:
        return f"after statement {number}{place}"
    return f"{'after' if is_after else 'before'} {step.text}{place}"
