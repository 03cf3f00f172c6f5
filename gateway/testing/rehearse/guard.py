"""Nothing leaves a rehearsal: connections, datagrams and programs that a handler starts by itself.

Python tells every connection to its audit hooks before it is made. Such a hook stays until the
process ends, so there is one, and it minds only the guard that is up.
"""

import asyncio
import errno
import multiprocessing.util
import socket
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple

import asyncpg

from gateway.testing.places import calling_place
from gateway.testing.rehearse.trace import begin_task, current_run, submitted, submitted_at

T = TypeVar("T")
Args = TypeVarTuple("Args")

PROGRAMS: Final = frozenset({"subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"})
COPIES: Final = frozenset({"os.fork", "os.forkpty"})
A_COPY: Final = "a copy of this process"
SENDING: Final = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
CURIOUS: Final = frozenset({"platform", "ctypes.util", "uuid"})
CANCELLING: Final = asyncpg.Connection._cancel.__code__  # type: ignore[attr-defined]
"""Asks the server to end a statement, by another connection: whoever has one, had it from us."""

RESOURCE_TRACKER: Final = "multiprocessing.resource_tracker"

_OURS: Final[ContextVar[bool]] = ContextVar("the gateway itself connects", default=False)


@contextmanager
def ours() -> Iterator[None]:
    """Lets the gateway's own connections pass. Nothing of the user's may run inside, and no task
    may be begun in it that outlives it and runs what is theirs: it would inherit the leave."""
    token = _OURS.set(True)
    try:
        yield
    finally:
        _OURS.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Escape:
    """Something that a handler tried to reach by itself."""

    target: str
    is_program: bool
    place: str | None


class Guard:
    """Refuses and notes every way out but those that are `ours`. That a handler's own connection
    would end on the throwaway server is no excuse: other databases may be there."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.escapes: dict[str, Escape] = {}

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """An audit event. Raises where it is a way out."""
        if _OURS.get():
            return
        if event in PROGRAMS:
            if not _asks_about_machine():
                self._refuse(_text(args[0]), is_program=True)
        elif event in COPIES:
            self._refuse(A_COPY, is_program=True)
        elif event in SENDING:
            self._check(args[0].family, args[1])
        elif event == "socket.getaddrinfo":
            self.check_host(args[0], args[1])

    def spawn(self, path: Any, args: Sequence[Any], passfds: Any) -> int:
        """In the place of multiprocessing's way to start a process, of which Python tells nobody.
        A process that only clears up may."""
        if not any(RESOURCE_TRACKER in _text(arg) for arg in args):
            self._refuse(A_COPY, is_program=True)
        return _SPAWN(path, args, passfds)

    def check_host(self, host: str | bytes | None, port: object) -> None:
        """For a name that is about to be looked up."""
        if host and not _OURS.get():
            self._refuse(f"{_text(host)}:{_text(port)}" if port else _text(host))

    def _check(self, family: int, address: Any) -> None:
        if family == socket.AF_UNIX and address:
            self._refuse(_text(address))
        elif isinstance(address, tuple):
            self._refuse(f"{_text(address[0])}:{_text(address[1])}")

    def _refuse(self, target: str, *, is_program: bool = False) -> None:
        place = calling_place(self._root) or submitted_at()
        if current_run() is not None or place is not None:
            self.escapes.setdefault(
                target, Escape(target=target, is_program=is_program, place=place)
            )
        raise ConnectionRefusedError(
            errno.ECONNREFUSED, f"a rehearsal reaches nothing outside, also not {target}"
        )


class _ImportGuard(Guard):
    """Lets programs pass: a module that asks git for its version does no harm."""

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event.startswith("socket."):
            super().hear(event, args)

    def spawn(self, path: Any, args: Sequence[Any], passfds: Any) -> int:
        return _SPAWN(path, args, passfds)


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

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> "asyncio.Task[T]":
        if context is None:  # else it may be one that is in use, and cannot be entered
            context = copy_context()
            context.run(begin_task, calling_place(self.root))
        if getattr(coro, "cr_code", None) is CANCELLING:
            context.run(_OURS.set, True)
        return super().create_task(coro, name=name, context=context)

    def call_exception_handler(self, context: Mapping[str, Any]) -> None:
        """Of tasks that a killed run left behind, nothing is to be told; a run tells of its own."""
        if self.guard is None:
            super().call_exception_handler(dict(context))

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
_SPAWN: Final = multiprocessing.util.spawnv_passfds


@contextmanager
def guarding(guard: Guard) -> Iterator[None]:
    """Keeps the guard up for as long as it lasts."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, RehearsalLoop):
        loop.guard = guard
    try:
        with _hooked(guard):
            yield
    finally:
        if isinstance(loop, RehearsalLoop):
            loop.guard = None


@contextmanager
def guarding_imports(root: Path) -> Iterator[None]:
    """Nothing gets out while the project's modules are imported: a socket that is connected then
    is a way out for as long as it is open."""
    with _hooked(_ImportGuard(root)):
        yield


@contextmanager
def _hooked(guard: Guard) -> Iterator[None]:
    _HOOK.add()
    _HOOK.guard = guard
    multiprocessing.util.spawnv_passfds = guard.spawn
    try:
        yield
    finally:
        _HOOK.guard = None
        multiprocessing.util.spawnv_passfds = _SPAWN


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
