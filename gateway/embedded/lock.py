"""One supervisor per engine directory; the kernel lets go when the supervisor dies."""

import fcntl
import os
from pathlib import Path

from gateway.errors import EngineFailed

PID_BYTES = 20


class Lock:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            holder = os.read(self._descriptor, PID_BYTES).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise EngineFailed(
                f"{path.parent} is in use by another gateway (process {holder or 'unknown'})"
            ) from taken
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        os.close(self._descriptor)
