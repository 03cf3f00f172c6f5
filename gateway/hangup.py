"""SIGHUP: an order to reload, from the first moment of a process to its last."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Hangup:
    """Hears SIGHUP, which then ends no process: one that comes too soon is obeyed later.

    Unless the terminal is gone in which the process was started: then it ends, as on SIGTERM.
    """

    def __init__(self) -> None:
        is_detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup
        self._had_terminal = not is_detached and _has_terminal()
        self._was_asked = False
        self._obey: Callable[[], object] | None = None

    def listen(self) -> None:
        """From now on. Also to one that a parent made wait until we can hear it."""
        signal.signal(signal.SIGHUP, self._hear)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    @contextmanager
    def obeyed_by(self, reload: Callable[[], object]) -> Iterator[None]:
        """Each one is passed on to the event loop; what came before or comes after ends nothing."""
        loop = asyncio.get_running_loop()
        self._obey = lambda: loop.call_soon_threadsafe(reload)
        if self._was_asked:
            reload()
        try:
            yield
        finally:
            self._obey = None

    def _hear(self, *_: object) -> None:
        if self._had_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)
        elif self._obey is not None:
            self._obey()
        else:
            self._was_asked = True


@contextmanager
def hangups_held() -> Iterator[None]:
    """A process that is started now inherits that SIGHUP waits until it listens: it would die of
    one that comes while it still imports its modules."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def _has_terminal() -> bool:
    """Whether there is one that could tell us something."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
