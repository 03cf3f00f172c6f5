"""Ports for servers that must be told their port before they start."""

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from typing import Final

FIRST: Final = 12_000
LAST: Final = 32_000
"""Below the range from which kernels give ports to clients (32768 and up on Linux, 49152 on macOS):
a port from that range can become the local end of any connection before the server listens."""


def free_port() -> int:
    """Return a port that nothing listens on and that no other test process was given recently.

    All test processes of an account count through one file, so that two of them never get the same
    port while the count runs once through the range.
    """
    counter = Path(tempfile.gettempdir()) / f"gateway-test-ports-{os.getuid()}"
    with counter.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        last = int(file.read() or FIRST)
        for offset in range(LAST - FIRST):
            port = FIRST + (last - FIRST + 1 + offset) % (LAST - FIRST)
            if _is_free(port):
                file.truncate(0)
                file.write(str(port))
                return port
    raise RuntimeError(f"every port from {FIRST} to {LAST} is in use")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104  # nothing connects: it is closed at once
        except OSError:
            return False
    return True
