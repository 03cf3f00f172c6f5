"""End a rehearsal on SIGTERM and SIGHUP as on Ctrl-C, so that nothing is left running."""

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class Unwinding:
    """Ends the running task on a signal, or the process if no task is running."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._signum: int | None = None

    def run(self, runner: asyncio.Runner, work: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine to its end, or until it has cleaned up after a signal.

        Raises SystemExit in that case. If the signal handler raised it, it would end up in the
        handler that is being rehearsed.
        """
        try:
            runner.run(self._watch(work))
        except asyncio.CancelledError:
            if self._signum is None:
                raise
            sys.exit(128 + self._signum)

    async def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.current_task()
        try:
            await work
        finally:
            self._task = None

    def hear(self, signum: int, _: FrameType | None) -> None:
        """Handle the signal."""
        self._signum = signum
        if self._task is None:
            sys.exit(128 + signum)
        self._task.get_loop().call_soon_threadsafe(self._task.cancel)


@contextmanager
def unwinding() -> Iterator[Unwinding]:
    """Handle the signals while the block runs, so that its cleanup runs too."""
    found = Unwinding()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = [signal.signal(signum, found.hear) for signum in SIGNALS]
    try:
        yield found
    finally:
        for signum, handler in zip(SIGNALS, before, strict=True):
            signal.signal(signum, handler)
