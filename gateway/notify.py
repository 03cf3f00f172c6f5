"""Tells systemd how a process is, where it asks to be told: Type=notify and WatchdogSec= of a unit.

The protocol: https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

BEATS: Final = 3
"""Within the time after which systemd takes the process for stuck."""

MICROSECONDS: Final = 1_000_000


class Notifier:
    """Says that the process works, and then that its event loop still turns."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        watched = environ.get("WATCHDOG_PID", "") in {"", str(os.getpid())}
        self._within_s = int(environ.get("WATCHDOG_USEC", 0)) / MICROSECONDS if watched else 0.0

    def started(self) -> None:
        """From now on it works; nothing where nobody asks."""
        self._tell(b"READY=1")
        if self._address and self._within_s:
            self._beat()

    def _beat(self) -> None:
        self._tell(b"WATCHDOG=1")
        asyncio.get_running_loop().call_later(self._within_s / BEATS, self._beat)

    def _tell(self, state: bytes) -> None:
        if not self._address:
            return
        # Whoever does not listen for a moment must not hold us up, let alone end us.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(state, self._address)
