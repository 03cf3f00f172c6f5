"""Handle SIGHUP as a request to reload, during the whole lifetime of a process."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Hangup:
    """Handle SIGHUP without ending the process. An early signal is handled later.

    If the terminal in which the process was started is gone, the process ends as on SIGTERM.
    """

    def __init__(self) -> None:
        is_detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # started with nohup
        self._had_terminal = not is_detached and _has_terminal()
        self._was_asked = False
        self._obey: Callable[[], object] | None = None

    def listen(self) -> None:
        """Install the handler, and unblock the signal (see `hangups_held`)."""
        signal.signal(signal.SIGHUP, self._hear)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    @contextmanager
    def obeyed_by(self, reload: Callable[[], object]) -> Iterator[None]:
        """Pass each signal to the event loop while the context is active.

        A signal that came earlier triggers a reload on entry. Signals outside of it are not fatal.
        """
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
    """Block SIGHUP, so that a process started now inherits the blocked signal until it listens.

    Otherwise a signal that arrives while it still imports its modules would kill it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def _has_terminal() -> bool:
    """Return whether the process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
