"""Nothing leaves a rehearsal: connections, datagrams and programs that a handler starts by itself.

Python tells every connection to its audit hooks before it is made. Such a hook stays until the
process ends, so there is one, and it minds only the guard that is up.
"""

import asyncio
import errno
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple
from urllib.parse import parse_qs, urlsplit

from gateway.testing.places import calling_place
from gateway.testing.rehearse.trace import current_run, submitted, submitted_at

T = TypeVar("T")
Args = TypeVarTuple("Args")

PROGRAMS: Final = frozenset({"subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"})
CURIOUS: Final = frozenset({"platform", "ctypes.util", "uuid"})
POSTGRES_PORT: Final = 5432


@dataclass(frozen=True, slots=True, kw_only=True)
class Escape:
    """Something that a handler tried to reach by itself."""

    target: str
    is_program: bool
    place: str | None


class Guard:
    """Refuses and notes every way out but the one to the throwaway database."""

    def __init__(self, root: Path, database_url: str) -> None:
        self._root = root
        self._folder, self._hosts, self._port = _address(database_url)
        self.escapes: dict[str, Escape] = {}

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """An audit event. Raises where it is a way out."""
        if event in PROGRAMS:
            if not _asks_about_machine():
                self._refuse(_text(args[0]), is_program=True)
        elif event in {"socket.connect", "socket.sendto"}:
            self._check(args[0].family, args[1])
        elif event == "socket.getaddrinfo" and args[0]:
            self._check_host(_text(args[0]), args[1])

    def check_host(self, host: str | bytes | None, port: object) -> None:
        """For a name that is about to be looked up."""
        if host:
            self._check_host(_text(host), port)

    def _check(self, family: int, address: Any) -> None:
        if family == socket.AF_UNIX:
            if self._folder is None or not _text(address).startswith(self._folder):
                self._refuse(_text(address))
        elif isinstance(address, tuple):
            self._check_host(_text(address[0]), address[1])

    def _check_host(self, host: str, port: object) -> None:
        if host not in self._hosts or str(port) != str(self._port):
            self._refuse(f"{host}:{_text(port)}" if port else host)

    def _refuse(self, target: str, *, is_program: bool = False) -> None:
        place = calling_place(self._root) or submitted_at()
        if current_run() is not None or place is not None:
            self.escapes.setdefault(
                target, Escape(target=target, is_program=is_program, place=place)
            )
        raise ConnectionRefusedError(
            errno.ECONNREFUSED, f"a rehearsal reaches nothing outside, also not {target}"
        )


class RehearsalLoop(asyncio.SelectorEventLoop):
    """An event loop whose lookups and threads can be traced to the code that asked for them.

    Always asyncio's own: uvloop connects without telling Python.
    """

    def __init__(self) -> None:
        super().__init__()
        self.guard: Guard | None = None
        self.root = Path.cwd()

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        if self.guard is not None:
            self.guard.check_host(host, port)
        return await super().getaddrinfo(host, port, **options)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Args], T], *args: *Args
    ) -> "asyncio.Future[T]":
        context, place = copy_context(), calling_place(self.root)

        def call() -> T:
            with submitted(place):
                return context.run(func, *args)

        return super().run_in_executor(executor, call)


class _Hook:
    """The one audit hook of the process."""

    def __init__(self) -> None:
        self.guard: Guard | None = None
        self._is_added = False

    def add(self) -> None:
        if not self._is_added:
            sys.addaudithook(self._hear)
            self._is_added = True

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.guard is not None and event.startswith(("socket.", "subprocess.", "os.")):
            self.guard.hear(event, args)


_HOOK: Final = _Hook()


@contextmanager
def guarding(guard: Guard) -> Iterator[None]:
    """Keeps the guard up for as long as it lasts."""
    _HOOK.add()
    loop = asyncio.get_running_loop()
    _HOOK.guard = guard
    if isinstance(loop, RehearsalLoop):
        loop.guard = guard
    try:
        yield
    finally:
        _HOOK.guard = None
        if isinstance(loop, RehearsalLoop):
            loop.guard = None


def _address(url: str) -> tuple[str | None, frozenset[str], int]:
    """Where the throwaway database is: a folder of sockets, or names and addresses, and a port."""
    parts = urlsplit(url)
    host = parse_qs(parts.query).get("host", [parts.hostname or "localhost"])[0]
    port = int(parse_qs(parts.query).get("port", [parts.port or POSTGRES_PORT])[0])
    if host.startswith("/"):
        return host, frozenset(), port
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return None, frozenset({host, *(str(entry[4][0]) for entry in found)}), port


def _asks_about_machine() -> bool:
    """Whether the standard library itself starts a program, to learn of the machine it runs on."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") in CURIOUS:
            return True
    return False


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
