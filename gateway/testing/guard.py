"""Refuse the connections that handlers open themselves, in a rehearsal and in a test.

Python reports its own connections to audit hooks before it opens them. An audit hook cannot be
removed until the process ends, so there is only one, and it asks the active guard. Drivers that
connect in C are wrapped (drivers.py), and ask the same guard.
"""

import asyncio
import errno
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, TypeVar, TypeVarTuple

import asyncpg

from gateway.ledger.servers import connect_to_one

OWN_FOLDER: Final = Path(__file__).parents[1]

_TASK: Final[ContextVar[str | None]] = ContextVar("where a task was begun", default=None)
_THREAD: Final = threading.local()


def calling_place(root: Path) -> str | None:
    """Return `file:line` of the innermost frame in the user's code, relative to `root`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = _seen_from(root, frame.f_code.co_filename)
        if file is not None:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def library_call(root: Path) -> tuple[str, ...]:
    """Return the library functions called from the user's code, the outermost first."""
    frame: FrameType | None = sys._getframe(1)
    names: list[str] = []
    while frame is not None and _seen_from(root, frame.f_code.co_filename) is None:
        if not Path(frame.f_code.co_filename).is_relative_to(OWN_FOLDER):
            names.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return tuple(reversed(names)) if frame is not None else ()


@contextmanager
def submitted(place: str | None) -> Iterator[None]:
    """Record the line that submitted a thread's work.

    The frames of the thread may not show the user's code.
    """
    _THREAD.place = place
    try:
        yield
    finally:
        _THREAD.place = None


def begin_task(place: str | None) -> None:
    """Record the line that started the task to which the current context belongs."""
    if place is not None:
        _TASK.set(place)


def submitted_at() -> str | None:
    """Return the line that started this thread's work or this task."""
    place: str | None = getattr(_THREAD, "place", None)
    return place or _TASK.get()


@lru_cache(maxsize=4096)
def _seen_from(root: Path, name: str) -> Path | None:
    """Return the file relative to `root` if it is the user's, or else None.

    It is cached, because it is called at every step of a run.
    """
    file = Path(name)
    return file.relative_to(root) if is_users(file, root) else None


def is_users(file: Path, root: Path) -> bool:
    """Return whether the file belongs to the project, and not to a library or the gateway."""
    is_library = "site-packages" in file.parts or file.is_relative_to(OWN_FOLDER)
    return file.is_relative_to(root) and not is_library


T = TypeVar("T")
Args = TypeVarTuple("Args")

PROGRAMS: Final = frozenset({"subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"})
COPIES: Final = frozenset({"os.fork", "os.forkpty"})
SENDING: Final = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
LOOKUP: Final = "socket.getaddrinfo"
SQLITE: Final = "sqlite3.connect"
HEARD: Final = PROGRAMS | COPIES | SENDING | {LOOKUP, SQLITE}

OWN: Final[frozenset[CodeType]] = frozenset(
    {connect_to_one.__code__, asyncpg.Connection._cancel.__code__}  # type: ignore[attr-defined]
)
"""The functions that open the gateway's own connections.

The second one asks the server to cancel a statement, over another connection. This is safe, because
a handler has no connections except those of the gateway.
"""

_IS_CHECKED: Final[ContextVar[bool]] = ContextVar("name has been checked", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Escape:
    """An attempt of a handler to reach something directly, not through the gateway."""

    target: str
    is_program: bool
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingCall:
    """A synchronous call in an `async def` that blocks the event loop until it returns."""

    function: str
    place: str


class AllowedHosts:
    """The servers to which a test lets its handlers connect.

    A pattern is `host`, `host:port`, or a socket's path. `*` matches any text.
    """

    def __init__(self, patterns: tuple[str, ...] = ()) -> None:
        self._patterns = patterns
        self._resolved: set[str] = set()

    def has(self, host: str, port: object = None) -> bool:
        address = f"{host}:{port}" if port else host
        if any(fnmatchcase(name, p) for name in (host, address) for p in self._patterns):
            return True
        return address in self._resolved or host in self._resolved

    def resolve(self, host: str, port: object) -> None:
        """Allow the addresses of a host that is allowed by name."""
        with_port = any(fnmatchcase(f"{host}:{port}", p) for p in self._patterns)
        for found in socket.getaddrinfo(host, None):
            address = str(found[4][0])
            self._resolved.add(f"{address}:{port}" if port and with_port else address)


class Guard:
    """Refuses and records each connection that is not the gateway's own.

    The server of the rehearsal or test is refused too, because it may have other databases.
    `reason` is the message of the refusal, with `{target}`. `is_in_run` returns whether the calling
    code belongs to a handler, even if no frame shows it.
    """

    refuses_programs = False
    refuses_files = False

    def __init__(
        self,
        root: Path,
        reason: str,
        *,
        allowed: AllowedHosts | None = None,
        is_in_run: Callable[[], bool],
    ) -> None:
        self._root = root
        self._reason = reason
        self._allowed = allowed or AllowedHosts()
        self._is_in_run = is_in_run
        self.escapes: dict[str, Escape] = {}
        self.blocking: dict[str, BlockingCall] = {}

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Handle an audit event.

        Raises ConnectionRefusedError if the event is a connection that is not allowed.
        """
        if event in SENDING:
            self._check(args[0].family, args[1])
        elif event == LOOKUP:
            if not _IS_CHECKED.get():
                self.check_host(args[0], args[1])
        elif event == SQLITE:
            self._check_file(as_text(args[0]))
        elif event in PROGRAMS:
            self._check_program(as_text(args[0]))
        elif event in COPIES:
            self._check_program("a copy of this process")

    def check_host(self, host: str | bytes | None, port: object) -> None:
        """Check a host name before it is looked up."""
        if not host or opens_own():
            return
        name = as_text(host)
        if self._allowed.has(name, port):
            token = _IS_CHECKED.set(True)
            try:
                self._allowed.resolve(name, port)
            finally:
                _IS_CHECKED.reset(token)
            return
        self.note_blocking(LOOKUP)
        self.refuse(f"{name}:{as_text(port)}" if port else name)

    def check_driver(self, host: str, port: str, *, is_async: bool) -> None:
        """Check a connection before a driver opens it in C."""
        target = host if host.startswith("/") or not port else f"{host}:{port}"
        if self._allowed.has(host, port) or self._allowed.has(target):
            return
        if not is_async:
            self.note_blocking(target)
        self.refuse(target)

    def note_blocking(self, function: str) -> None:
        """Record a call that blocks the event loop.

        Such a call is made in the event loop's thread, and not by asyncio itself. Other calls are
        ignored.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        place, calls = calling_place(self._root), library_call(self._root)
        if place is None or any(call.startswith("asyncio.") for call in calls):
            return
        name = calls[0] if calls else function
        self.blocking.setdefault(place, BlockingCall(function=name, place=place))

    def refuse(self, target: str, *, is_program: bool = False) -> None:
        """Record the attempt, and raise ConnectionRefusedError."""
        place = calling_place(self._root) or submitted_at()
        if place is not None or self._is_in_run():
            escape = Escape(target=target, is_program=is_program, place=place)
            self.escapes.setdefault(target, escape)
        raise ConnectionRefusedError(errno.ECONNREFUSED, self._reason.format(target=target))

    def _check(self, family: int, address: Any) -> None:
        if family == socket.AF_UNIX and address:
            host, port = as_text(address), None
        elif isinstance(address, tuple):
            host, port = as_text(address[0]), address[1]
        else:
            return
        if self._allowed.has(host, port) or opens_own():
            return
        self.note_blocking("socket.connect")
        self.refuse(f"{host}:{port}" if port is not None else host)

    def _check_file(self, name: str) -> None:
        in_memory = name in ("", ":memory:") or "mode=memory" in name or "::memory:" in name
        if self.refuses_files and not in_memory:
            self.note_blocking(SQLITE)
            self.refuse(f"the SQLite database {name}")

    def _check_program(self, name: str) -> None:
        if self.refuses_programs:
            self.note_blocking(name)
            self.refuse(name, is_program=True)


class GuardedLoop(asyncio.SelectorEventLoop):
    """An event loop whose lookups, tasks and threads can be traced to the code that started them.

    It is always asyncio's own loop, because uvloop connects without an audit event.
    """

    def __init__(self) -> None:
        super().__init__()
        self.guard: Guard | None = None
        self.root = Path.cwd()

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        if self.guard is not None:
            self.guard.check_host(host, port)
        token = _IS_CHECKED.set(True)
        try:
            return await super().getaddrinfo(host, port, **options)
        finally:
            _IS_CHECKED.reset(token)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> "asyncio.Task[T]":
        if context is None:  # a context that is given may be in use, and cannot be entered
            context = copy_context()
            context.run(begin_task, calling_place(self.root))
        return super().create_task(coro, name=name, context=context)

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
        if event in HEARD and self.guard is not None:
            self.guard.hear(event, args)


_HOOK: Final = _Hook()


def current_guard() -> Guard | None:
    """Return the active guard."""
    return _HOOK.guard


@contextmanager
def guarding(guard: Guard) -> Iterator[None]:
    """Activate the guard while the block runs."""
    loop = _running_loop()
    _HOOK.add()
    before, _HOOK.guard = _HOOK.guard, guard
    if loop is not None:
        loop.guard = guard
    try:
        yield
    finally:
        _HOOK.guard = before
        if loop is not None:
            loop.guard = None


def opens_own() -> bool:
    """Return whether the connection is one of the gateway's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in OWN:
            return True
        frame = frame.f_back
    return False


def as_text(value: object) -> str:
    """Convert a host, a path or an argument to text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _running_loop() -> GuardedLoop | None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return loop if isinstance(loop, GuardedLoop) else None
