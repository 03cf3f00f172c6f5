"""Runs suspects, deliveries whose worker was lost twice while they ran, apart from all others.

Whatever kills a process (out of memory, a crash in native code) also ends the other deliveries in
it, and the ledger does not know which one was at fault. A suspect therefore runs alone: a worker
starts another process for it, which runs one suspect at a time and ends when none is due.

The worker sends commands to the standard input of the isolated process: STOP and HURRY have the
same effect as a first and a second SIGTERM for a worker. If the worker dies, the pipe is closed,
which means STOP.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog

from gateway.base.hangup import hangups_held
from gateway.base.model import HandlerKey
from gateway.ledger.connection import TROUBLE, Pool, describe
from gateway.ledger.deliveries import find_suspects

STOP: Final = b"s"
HURRY: Final = b"h"
OPTION: Final = "--isolated"
COMMAND: Final = (sys.executable, "-m", "gateway", "worker", OPTION)

LEAVE_S: Final = 8.0
"""How long after the grace time an isolated process may take to hand its delivery back: longer than
a cancelled handler may take to end (STOP_S), and soon enough for supervisors that wait 45 s."""

STUCK_LEASES: Final = 4
"""For how many lease times the event loop of an isolated process may stand still. The suspect that
blocks it has lost its lease long before, and the others wait for the process."""
TICKS: Final = 8
"""How often meanwhile the loop shows that it runs."""

SYSTEMD: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
"""Not passed on: systemd watches the worker, and not the processes that it starts."""

OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
FIRST_TO_DIE: Final = "1000"

log = structlog.get_logger("gateway.run")


class IsolatedWorker:
    """Starts the isolated process whenever a suspect is due, and stops it with the worker."""

    def __init__(self, ledger: Pool, *, handlers: Sequence[HandlerKey], every: timedelta) -> None:
        self._ledger = ledger
        self._handlers = handlers
        self._every_s = every.total_seconds()
        self._process: Process | None = None
        self._is_stopping = False
        self._ended = asyncio.Event()
        """Set while there is no process."""
        self._ended.set()

    async def supervise_forever(self) -> None:
        """Look for suspects once per sweep, and run a process while there are any."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                is_due = await find_suspects(self._ledger, self._handlers)
            except TROUBLE as error:
                log.warning("suspects_unknown", error=describe(error))
                continue
            if is_due and not self._is_stopping:
                await self._run()

    async def stop(self, grace: timedelta) -> None:
        """Let the suspect that runs finish within the grace time, or hand it back."""
        self._is_stopping = True
        self._send(STOP)
        ended = asyncio.create_task(self._ended.wait())
        await asyncio.wait({ended}, timeout=grace.total_seconds() + LEAVE_S)
        if not ended.done() and self._process is not None:
            self._process.kill()
        ended.cancel()

    def hurry(self) -> None:
        """End the grace time."""
        self._send(HURRY)

    async def _run(self) -> None:
        self._ended.clear()
        try:
            with hangups_held():
                process = await asyncio.create_subprocess_exec(
                    *COMMAND, stdin=PIPE, env=_environ(), start_new_session=True
                )
        except OSError as error:  # no more processes, memory or files: the others must go on
            self._ended.set()
            log.warning("isolated_worker_not_started", error=describe(error))
            return
        try:
            self._process = process
            log.info("isolated_worker_started", child_pid=process.pid)
            if self._is_stopping:
                self._send(STOP)
            code = await process.wait()
        finally:
            self._process = None
            self._ended.set()
        if code == 0:
            log.info("isolated_worker_ended", child_pid=process.pid)
        else:  # negative: the number of the signal
            log.warning("isolated_worker_lost", child_pid=process.pid, exit_code=code)

    def _send(self, command: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):  # it has ended
                self._process.stdin.write(command)


def obey_parent(stop: Callable[[], None], hurry: Callable[[], None]) -> None:
    """In the isolated process: follow the worker's commands, and stop when the worker is gone."""
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        commands = os.read(fd, 1024)
        if not commands:
            loop.remove_reader(fd)
        if HURRY in commands:
            hurry()
        else:
            stop()

    loop.add_reader(fd, read)


async def die_when_stuck(lease: timedelta) -> None:
    """In the isolated process: let the kernel end it if its event loop stands still for too long.

    The timer does not need the loop, the interpreter or the worker, which may be gone: a call of
    native code that never returns is ended, too.
    """
    stuck_s = lease.total_seconds() * STUCK_LEASES
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while True:
        signal.setitimer(signal.ITIMER_REAL, stuck_s)
        await asyncio.sleep(stuck_s / TICKS)


def die_first() -> None:
    """When memory is short, let the kernel end this process and not the worker beside it."""
    with contextlib.suppress(OSError):  # not Linux, or /proc cannot be written
        OOM_SCORE.write_text(FIRST_TO_DIE, encoding="ascii")


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in SYSTEMD}
