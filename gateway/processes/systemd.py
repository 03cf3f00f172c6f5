"""Notify systemd of the state of a process, for units with Type=notify and WatchdogSec=.

The protocol: https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

BEATS: Final = 3
"""Number of heartbeats within the watchdog timeout."""

MICROSECONDS: Final = 1_000_000


class Notifier:
    """Notify systemd that the process is ready, and then that its event loop is running."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        watched = environ.get("WATCHDOG_PID", "") in {"", str(os.getpid())}
        self._within_s = int(environ.get("WATCHDOG_USEC", 0)) / MICROSECONDS if watched else 0.0

    def started(self) -> None:
        """Report that the process is ready. A no-op if it does not run under systemd."""
        self._tell(b"READY=1")
        if self._address and self._within_s:
            self._beat()

    def _beat(self) -> None:
        self._tell(b"WATCHDOG=1")
        asyncio.get_running_loop().call_later(self._within_s / BEATS, self._beat)

    def _tell(self, state: bytes) -> None:
        if not self._address:
            return
        # A listener that does not read must not block this process, let alone end it.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(state, self._address)
