"""One run: load, faults one after the other, the end of both, and the audit."""

import asyncio
import contextlib
import os
import platform
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from rich.console import Console

from tests.support.waiting import until
from tests.torture.audit import BOUND_S, Result, Run, Sent, judge
from tests.torture.evidence import Evidence, gather, unfinished
from tests.torture.faults import FAULTS
from tests.torture.plan import BURST, SHAPES, Shape, Step, draw_steps
from tests.torture.record import CALM, Record, Window
from tests.torture.report import print_window
from tests.torture.resolve import Scene as ResolveScene
from tests.torture.resolve import list_effects, resolve
from tests.torture.sender import MOST_WAITING_S, Sender
from tests.torture.stage import NotPossible, open_stage
from tests.torture.watcher import Watcher
from tests.torture.wire import Address

WARM_UP_S: Final = 2.0
FAULT_S: Final = 90.0
FINISH_S: Final = 60.0
LONGEST_S: Final = 1800.0
"""For a run that does not get as many acknowledgements as were asked for."""
PATIENCE_S: Final = 2.0 * BOUND_S
"""How long the harness itself waits for a recovery: one that is too long must be seen as such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for."""

    seed: int
    faults: Sequence[str]
    seconds: float
    events: int
    rate: float
    allow_missing: bool
    command: str
    patience_s: float = PATIENCE_S
    most_waiting_s: float = MOST_WAITING_S
    is_timed: bool = True
    """Whether a recovery that takes too long is a failure."""


class Scene(ResolveScene, Protocol):
    """What is attacked."""

    @property
    def addresses(self) -> Sequence[Address]: ...

    @property
    def restarts(self) -> int: ...


S = TypeVar("S", bound=Scene)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script(Generic[S]):
    """What can be done to it."""

    faults: Mapping[str, Callable[[S, Step], Awaitable[str]]]
    shapes: Mapping[str, Shape]


class Attack(Generic[S]):
    """Goes on at least until every fault has been there."""

    def __init__(self, options: Options, script: Script[S], stage: S, console: Console) -> None:
        self._options = options
        self._script = script
        self._stage = stage
        self._console = console
        self._record = Record(
            calls=stage.callee.calls,
            ordered_calls=stage.callee.ordered_calls,
            epoch_s=time.time() - time.monotonic(),
        )
        self._sender = Sender(
            options.seed, options.rate, stage.addresses, self._record, options.most_waiting_s
        )
        self._watcher = Watcher(stage.connect, self._record)
        self._missing: dict[str, str] = {}
        self._stuck = ""
        self._told: Counter[str] = Counter()
        self._began_at = time.monotonic()

    async def run(self) -> Result:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watcher.watch_forever())
            sending = group.create_task(self._sender.send_forever())
            try:
                await self._attack()
                sending.cancel()
                await self._finish()
            finally:
                self._sender.cancel()
            watching.cancel()
        self._close_window()
        evidence = await self._evidence()
        listed = await list_effects(self._stage)
        resolution = await resolve(self._stage, listed, self._options.patience_s)
        return judge(self._run(), self._sent(), self._record, evidence, listed, resolution)

    async def _attack(self) -> None:
        self._open_window(CALM, "")
        await asyncio.sleep(WARM_UP_S)
        shapes = self._script.shapes
        rounds = draw_steps(self._options.seed, self._options.faults, shapes)
        for number, steps in enumerate(rounds):
            for step in steps:
                if number and self._is_enough:
                    return
                await self._break(step)
                if self._stuck:
                    return
                if not step.overlaps:
                    await self._recovered()
                await asyncio.sleep(step.pause_s)
            if self._is_enough:
                return

    @property
    def _is_enough(self) -> bool:
        elapsed_s = time.monotonic() - self._began_at
        acknowledged = len(self._record.acknowledged)
        if elapsed_s > self._options.seconds + LONGEST_S:
            return True
        return elapsed_s >= self._options.seconds and acknowledged >= self._options.events

    async def _break(self, step: Step) -> None:
        self._sender.burst(BURST)
        await asyncio.sleep(step.lead_s)
        window = self._open_window(step.fault, step.target)
        try:
            async with asyncio.timeout(FAULT_S):
                window.note = await self._script.faults[step.fault](self._stage, step)
        except TimeoutError:
            self._stuck = f"{step.fault} {step.target}".strip()
        except NotPossible as problem:
            self._missing[step.fault] = str(problem)
            self._record.windows.remove(window)
            self._console.print(f"          {step.fault}: not possible here: {problem}")
            return
        window.ended_at = time.monotonic()
        window.overlaps = step.overlaps
        print_window(self._console, self._began_at, window, len(self._record.acknowledged))

    def _open_window(self, fault: str, target: str) -> Window:
        self._close_window()
        now = time.monotonic()
        window = Window(fault=fault, target=target, started_at=now, ended_at=now)
        self._record.windows.append(window)
        return window

    def _close_window(self) -> None:
        told, self._told = self._told, self._sender.answers.copy()
        if self._record.windows:
            self._record.windows[-1].answers = dict(self._told - told)

    async def _recovered(self) -> None:
        """Waits until all that was acknowledged before the end of the fault has taken effect."""
        ended_at = self._record.windows[-1].ended_at
        try:
            await until(lambda: self._record.is_whole(ended_at), within_s=self._options.patience_s)
        except AssertionError:
            self._record.give_up(ended_at)

    async def _finish(self) -> None:
        """Everything is whole again: every sender gets its answer, every delivery its end."""
        with contextlib.suppress(AssertionError, TimeoutError):  # the audit says what is missing
            await self._stage.ready()
            async with asyncio.timeout(FINISH_S):
                await self._sender.finish()
            await until(self._is_whole, within_s=self._options.patience_s)

    async def _is_whole(self) -> bool:
        if self._record.waiting:
            return False
        connection = await self._stage.connect()
        try:
            return await unfinished(connection) == 0
        finally:
            await connection.close()

    async def _evidence(self) -> Evidence:
        connection = await self._stage.connect()
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await gather(connection)
        finally:
            await connection.close()

    def _sent(self) -> Sent:
        sender = self._sender
        return Sent(
            events=sender.sent,
            held_back_s=round(sender.held_back_s, 1),
            retries=sender.retries,
            given_up=sender.given_up,
            duplicates=sender.duplicates["sent"],
            duplicates_answered=sender.duplicates["answered"],
            answers=dict(sorted(sender.answers.items())),
            unexpected=sender.unexpected,
        )

    def _run(self) -> Run:
        return Run(
            seed=self._options.seed,
            command=self._options.command,
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            machine=describe_machine(),
            duration_s=round(time.monotonic() - self._began_at, 1),
            wanted=list(self._options.faults),
            least_acknowledged=self._options.events,
            stuck=self._stuck,
            missing=self._missing,
            allow_missing=self._options.allow_missing,
            is_timed=self._options.is_timed,
            processes_restarted=self._stage.restarts,
            schedule=[self._as_json(window) for window in self._record.windows],
        )

    def _as_json(self, window: Window) -> dict[str, Any]:
        times = {
            "started_at": round(window.started_at - self._began_at, 2),
            "ended_at": round(window.ended_at - self._began_at, 2),
        }
        return asdict(window) | times


def describe_machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[1]
    return f"{cores} cores, load average {load:.1f}, Python {platform.python_version()}"


async def attack(options: Options, directory: Path, console: Console) -> Result:
    """Sets everything up in the directory, attacks it, and tears it down."""
    async with open_stage(directory) as stage:
        script = Script(faults=FAULTS, shapes=SHAPES)
        return await Attack(options, script, stage, console).run()
