"""A supervised child process that is restarted if it ends, and replaced without a gap."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

import structlog

from gateway.base.errors import CommandFailed
from gateway.base.hangup import hangups_held

RESTART_S: Final = (0.5, 10.0)
READY_WITHIN_S: Final = 30.0
GONE_WITHIN_S: Final = 2.0
"""How long a reload waits for the replaced processes. An idle one needs a
few milliseconds to end.
"""

log = structlog.get_logger("gateway.up")


async def unless(stopping: asyncio.Event, *works: Coroutine[Any, Any, Any]) -> None:
    """Run the coroutines until one ends, then cancel the others.

    When `stopping` is set, cancel all.
    """
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
    """Supervisor of `gateway serve` or `gateway worker`."""

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
        """Run the process until `stopping` is set, and restart it with a
        backoff if it ends earlier.
        """
        delay_s = RESTART_S[0]
        while not self._stopping.is_set():
            process = self.process or await self._restart()
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

    async def start(self) -> Process:
        """Start a process, beside the current one if any, and return it when it is ready.

        Raises CommandFailed if it never is.
        """
        hears, says = os.pipe()
        try:
            process = await self._spawn("--ready-fd", str(says), inherits=[says])
        finally:
            os.close(says)
        # The pipe closes when the process ends, so this read returns in any case.
        hearing = asyncio.create_task(asyncio.to_thread(os.read, hears, 1))
        await asyncio.wait({hearing}, timeout=READY_WITHIN_S)
        if not hearing.done():
            process.kill()
        heard = await hearing
        os.close(hears)
        if not heard:
            raise CommandFailed(f"`gateway {self.name}` did not start")
        return process

    async def hand_over(self, process: Process) -> None:
        """Make this process the current one, and let the old one finish its work.

        Waits briefly for the old process to end. Until then it still accepts work
        with the old configuration.
        """
        old, self.process = self.process, process
        self._handed_over.set()
        if old is not None:
            await asyncio.wait({self.dismiss(old)}, timeout=GONE_WITHIN_S)

    def dismiss(self, process: Process) -> asyncio.Task[None]:
        """Terminate a process without waiting for it."""
        _terminate(process)
        task = asyncio.create_task(self._end(process))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    def stop(self) -> None:
        """Send SIGTERM to the processes.

        The first one drains, a second one ends the grace period.
        """
        for process in self._alive():
            _terminate(process)

    async def ended(self) -> None:
        """Wait until all processes have ended, after `stop`."""
        await asyncio.gather(*map(self._end, self._alive()), *self._leaving)

    def hang_up(self) -> None:
        """Send SIGHUP to the processes, which makes them reload their secrets."""
        for process in self._alive():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)

    def _alive(self) -> list[Process]:
        return [process for process in self._spawned if process.returncode is None]

    async def _restart(self) -> Process:
        process = await self._spawn()
        if self.process is None:
            self.process = process
        else:  # another process was handed over meanwhile
            _terminate(process)
        return self.process

    async def _spawn(self, *options: str, inherits: Sequence[int] = ()) -> Process:
        # Each child has its own process group, so Ctrl-C reaches only `up`, which stops its
        # children in order. The pipe to the child's standard input closes when we end for any
        # reason, and the child then stops.
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
        """Wait for a terminated process, and kill it after the timeout."""
        ending = asyncio.create_task(process.wait())
        await asyncio.wait({ending}, timeout=self._stop_within_s)
        if not ending.done():
            process.kill()
        await ending


def _terminate(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
