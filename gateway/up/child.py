"""One command of ours: kept running, and replaced without a gap."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

import structlog

from gateway.errors import CommandFailed
from gateway.hangup import hangups_held

RESTART_S: Final = (0.5, 10.0)
READY_WITHIN_S: Final = 30.0
GONE_WITHIN_S: Final = 2.0
"""How long a reload waits for those that it replaced: an idle one needs some milliseconds."""

log = structlog.get_logger("gateway.up")


async def unless(stopping: asyncio.Event, *works: Coroutine[Any, Any, Any]) -> None:
    """Runs them until one ends, and drops the others; at a signal, drops them all."""
    tasks = {asyncio.create_task(work) for work in works}
    signalled = asyncio.create_task(stopping.wait())
    everything = {*tasks, signalled}
    ended, unfinished = await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
    for task in unfinished:
        task.cancel()
    await asyncio.wait(everything, timeout=1)
    for task in ended:
        task.result()


class Child:
    """`gateway serve` or `gateway worker`, until `stopping`."""

    def __init__(
        self,
        name: str,
        *,
        variables: Mapping[str, str],
        stopping: asyncio.Event,
        stop_within_s: float,
        options: Sequence[str] = (),
        inherits: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.process: Process | None = None
        self._variables = variables
        self._stopping = stopping
        self._stop_within_s = stop_within_s
        self._options = options
        self._inherits = inherits
        self._spawned: list[Process] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._handed_over = asyncio.Event()

    async def keep_running(self) -> None:
        """Runs it, and runs it again should it end before it was told to."""
        delay_s = RESTART_S[0]
        while not self._stopping.is_set():
            process = self.process or await self._start()
            self._handed_over.clear()
            await unless(self._stopping, process.wait(), self._handed_over.wait())
            if self._stopping.is_set() or process is not self.process:
                continue
            code = process.returncode
            log.error("process_ended", process=self.name, code=code, again_in_s=delay_s)
            await unless(self._stopping, asyncio.sleep(delay_s), self._handed_over.wait())
            delay_s = min(delay_s * 2, RESTART_S[1])
            if process is self.process:
                self.process = None
        await asyncio.gather(*map(self._end, self._alive()), *self._leaving)

    async def start_another(self) -> Process:
        """A new process beside the old one, as soon as it works; CommandFailed if it never does."""
        hears, says = os.pipe()
        try:
            process = await self._spawn("--ready-fd", str(says), inherits=[says])
        finally:
            os.close(says)
        # Its end of the pipe ends with it, so that this returns in any case.
        hearing = asyncio.create_task(asyncio.to_thread(os.read, hears, 1))
        await asyncio.wait({hearing}, timeout=READY_WITHIN_S)
        if not hearing.done():
            process.kill()
        heard = await hearing
        os.close(hears)
        if not heard:
            raise CommandFailed(f"the new `gateway {self.name}` did not start")
        return process

    async def hand_over(self, process: Process) -> None:
        """This one counts from now on, and the old one may finish what it has begun. Waits a little
        for its end: until then it takes what comes, by what it knows."""
        old, self.process = self.process, process
        self._handed_over.set()
        if old is not None:
            await asyncio.wait({self.dismiss(old)}, timeout=GONE_WITHIN_S)

    def dismiss(self, process: Process) -> asyncio.Task[None]:
        """Lets one end, without waiting for it."""
        _terminate(process)
        task = asyncio.create_task(self._end(process))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    def stop(self) -> None:
        """Passes a signal on: the first one drains, a second one ends the grace time."""
        for process in self._alive():
            _terminate(process)

    def hang_up(self) -> None:
        """Has it read its secrets anew."""
        for process in self._alive():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)

    def _alive(self) -> list[Process]:
        return [process for process in self._spawned if process.returncode is None]

    async def _start(self) -> Process:
        process = await self._spawn()
        if self.process is None:
            self.process = process
        else:  # one was handed over meanwhile
            _terminate(process)
        return self.process

    async def _spawn(self, *options: str, inherits: Sequence[int] = ()) -> Process:
        # A group of its own: Ctrl-C reaches only `up`, which stops its children in order. The pipe
        # to its standard input ends with us, however we end, and the child ends with the pipe.
        with hangups_held():
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gateway",
                self.name,
                *self._options,
                *options,
                "--with-parent",
                stdin=PIPE,
                env=self._variables,
                start_new_session=True,
                pass_fds=[*self._inherits, *inherits],
            )
        self._spawned = [*self._alive(), process]
        if self._stopping.is_set():
            _terminate(process)
        return process

    async def _end(self, process: Process) -> None:
        """Waits for one that was told to end, and not for ever."""
        ending = asyncio.create_task(process.wait())
        await asyncio.wait({ending}, timeout=self._stop_within_s)
        if not ending.done():
            process.kill()
        await ending


def _terminate(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
