"""Refuse connections, datagrams, programs and SQLite files: a rehearsal reaches nothing outside."""

import multiprocessing.util
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from gateway.testing.drivers import find_unguarded, wrap_drivers
from gateway.testing.guard import Escape, Guard, GuardedLoop, as_text, guarding, opens_own
from gateway.testing.rehearse.trace import current_run

CURIOUS: Final = frozenset({"platform", "ctypes.util", "uuid"})
RESOURCE_TRACKER: Final = "multiprocessing.resource_tracker"
_SPAWN: Final = multiprocessing.util.spawnv_passfds


class Outlet(Protocol):
    """The only way to connect from a process whose connections the kernel refuses."""

    def connect(self, address: str | tuple[str, int]) -> socket.socket:
        """Return a connected socket. Raises OSError."""

    def take_attempts(self) -> list[str]:
        """Return the addresses that the kernel has refused since the last call."""


class RehearsalGuard(Guard):
    """Refuses every connection, program and file outside the rehearsal.

    With an outlet the kernel refuses connections too, including those of libraries that bypass
    Python.
    """

    refuses_programs = True
    refuses_files = True

    def __init__(self, root: Path, outlet: Outlet | None = None) -> None:
        super().__init__(root)
        self._outlet = outlet

    def clear(self) -> None:
        """Forget all records before the next handler."""
        self.found()
        self.escapes.clear()
        self.blocking.clear()

    def found(self) -> list[Escape]:
        """Return the refused attempts."""
        if self._outlet is not None:
            for target in self._outlet.take_attempts():
                escape = Escape(target=target, is_program=False, place=None)
                self.escapes.setdefault(target, escape)
        return list(self.escapes.values())

    def find_unguarded(self) -> tuple[str, ...]:
        """Return the imported packages whose connections, if they open any, are not refused."""
        return () if self._outlet is not None else tuple(find_unguarded())

    def spawn(self, path: Any, args: Sequence[Any], passfds: Any) -> int:
        """Replace multiprocessing's function to start a process, which has no audit event.

        Its resource tracker is started, because it only cleans up.
        """
        if not any(RESOURCE_TRACKER in as_text(arg) for arg in args):
            self.refuse("a copy of this process", is_program=True)
        return _SPAWN(path, args, passfds)

    def _is_in_run(self) -> bool:
        return current_run() is not None

    def _reason(self, target: str) -> str:
        return f"a rehearsal reaches nothing outside, also not {target}"

    def _check_program(self, name: str) -> None:
        if not _asks_about_machine():
            super()._check_program(name)


class ImportGuard(RehearsalGuard):
    """Allows programs during imports: a module that asks git for its version does no harm."""

    refuses_programs = False

    def spawn(self, path: Any, args: Sequence[Any], passfds: Any) -> int:
        return _SPAWN(path, args, passfds)


class RehearsalLoop(GuardedLoop):
    """The event loop of a rehearsal: the gateway's own connections use the outlet."""

    def __init__(self, outlet: Outlet | None = None) -> None:
        super().__init__()
        self._outlet = outlet

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        if self._outlet is not None and host is not None and opens_own():
            if options.get("ssl"):
                options.setdefault("server_hostname", host)
            options["sock"], host, port = self._outlet.connect((host, int(port))), None, None
        return await super().create_connection(protocol_factory, host, port, **options)

    async def create_unix_connection(
        self, protocol_factory: Any, path: Any = None, **options: Any
    ) -> Any:
        if self._outlet is not None and path is not None and opens_own():
            options["sock"], path = self._outlet.connect(as_text(path)), None
        return await super().create_unix_connection(protocol_factory, path, **options)

    def call_exception_handler(self, context: Mapping[str, Any]) -> None:
        """Report no errors of the tasks that a killed run left behind: a run reports its own."""
        if self.guard is None:
            super().call_exception_handler(dict(context))


@contextmanager
def rehearsing(guard: RehearsalGuard) -> Iterator[None]:
    """Activate the guard while the block runs, also for processes that multiprocessing starts."""
    wrap_drivers()
    with guarding(guard):
        multiprocessing.util.spawnv_passfds = guard.spawn
        try:
            yield
        finally:
            multiprocessing.util.spawnv_passfds = _SPAWN


@contextmanager
def guarding_imports(root: Path) -> Iterator[None]:
    """Refuse connections while the project's modules are imported.

    A connection that is opened then could be used for as long as it stays open.
    """
    with rehearsing(ImportGuard(root)):
        yield


def _asks_about_machine() -> bool:
    """Return whether the standard library itself starts a program, to learn about the machine."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") in CURIOUS:
            return True
    return False
