"""Isolate handlers: refuse what leaves the rehearsal, and replace the clock, mail and sleep."""

import asyncio
import datetime
import multiprocessing.util
import re
import smtplib
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol, TextIO

from gateway.testing.drivers import find_unguarded, wrap_drivers
from gateway.testing.guard import (
    Escape,
    Guard,
    GuardedLoop,
    as_text,
    current_guard,
    guarding,
    is_users,
    opens_own,
)
from gateway.testing.rehearse.services import MAIL
from gateway.testing.rehearse.trace import Forgotten, current_run

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
        reason = "a rehearsal reaches nothing outside, also not {target}"
        super().__init__(root, reason, is_in_run=lambda: current_run() is not None)
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


LATER: Final = timedelta(days=100, hours=5, minutes=7)
"""By how much the clock advances: every unit that a key may be made of changes, up to a quarter."""

_LATER_S: Final = LATER.total_seconds()


@contextmanager
def later_clock(root: Path) -> Iterator[None]:
    """Advance the clock that the user's modules have imported, while the block runs.

    Only the user's own names are replaced, because the libraries, the gateway and the database must
    agree on the time. An import inside a function still gets the real clock.
    """
    own = _stand_ins()
    real = [
        (module, {name: value for name, value in vars(module).items() if id(value) in own})
        for module in _users_modules(root)
    ]
    for module, names in real:
        vars(module).update({name: own[id(value)] for name, value in names.items()})
    try:
        yield
    finally:
        for module, names in real:
            vars(module).update(names)


def _users_modules(root: Path) -> Iterator[ModuleType]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_users(Path(file), root):
            yield module


class _AsReal(type):
    """Let `isinstance` and `issubclass` take a stand-in for the class that it replaces."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__mro__[1])

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.__mro__[1])


class _LaterDatetime(datetime.datetime, metaclass=_AsReal):
    """A `datetime` whose present is later. It makes plain values, which every library takes."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return datetime.datetime(*args, **kwargs)  # noqa: DTZ001 (the zone is among them)

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return datetime.datetime.now(tz) + LATER

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return cls.now()


class _LaterDate(datetime.date, metaclass=_AsReal):
    """A `date` whose today is later."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return datetime.date(*args, **kwargs)

    @classmethod
    def today(cls) -> Any:
        return _LaterDatetime.now().date()


def _later_time() -> float:
    return time.time() + _LATER_S


def _stand_ins() -> Mapping[int, Any]:
    """Return what replaces each class, function and module, by the identity of the original."""
    classes = {"datetime": _LaterDatetime, "date": _LaterDate}
    functions = {
        "time": _later_time,
        "time_ns": lambda: time.time_ns() + int(_LATER_S) * 1_000_000_000,
        "gmtime": lambda seconds=None: time.gmtime(_later_time() if seconds is None else seconds),
        "localtime": lambda seconds=None: time.localtime(
            _later_time() if seconds is None else seconds
        ),
        "strftime": lambda format, moment=None: time.strftime(
            format, time.localtime(_later_time()) if moment is None else moment
        ),
    }
    found: dict[int, Any] = {}
    for module, own in ((datetime, classes), (time, functions)):
        stand_in = ModuleType(module.__name__)
        vars(stand_in).update(vars(module) | own)
        found[id(module)] = stand_in
        found |= {id(vars(module)[name]): value for name, value in own.items()}
    return found


SAID: Final = b"recorded by a rehearsal"
SILENCED: Final = ("ehlo", "helo", "starttls", "login", "rset", "noop", "verify")
CODES: Final = {"QUIT": 221, "DATA": 354, "STARTTLS": 220, "AUTH": 235}
"""Reply codes of a successful command, if not 250 (https://www.rfc-editor.org/rfc/rfc5321)."""


@contextmanager
def recorded_mail() -> Iterator[None]:
    """Keep `smtplib` from connecting to any server while the block runs.

    The methods are replaced, not the classes, because a module may have imported `SMTP` under a
    name of its own.
    """
    replaced = {**dict.fromkeys(SILENCED, _fine), **REPLACED}
    kept = {name: getattr(smtplib.SMTP, name) for name in replaced}
    _replace(replaced)
    try:
        yield
    finally:
        _replace(kept)


def _replace(methods: Mapping[str, Callable[..., object]]) -> None:
    for name, method in methods.items():
        setattr(smtplib.SMTP, name, method)


def _fine(*_: object, **__: object) -> tuple[int, bytes]:
    return 250, SAID


def _greet(*_: object, **__: object) -> tuple[int, bytes]:
    guard = current_guard()
    if guard is not None:
        guard.note_blocking("smtplib.SMTP.connect")
    return 220, SAID


def _answer(_: smtplib.SMTP, command: str, *__: object) -> tuple[int, bytes]:
    return CODES.get(command.upper(), 250), SAID


def _nothing(*_: object, **__: object) -> None: ...


def _sendmail(
    _: smtplib.SMTP,
    from_addr: str,
    to_addrs: str | Sequence[str],
    msg: bytes | str,
    *__: object,
    **___: object,
) -> dict[str, tuple[int, bytes]]:
    receivers = to_addrs if isinstance(to_addrs, str) else ", ".join(to_addrs)
    content = msg if isinstance(msg, str) else msg.decode("utf-8", "replace")
    run = current_run()
    if run is not None:
        outage = run.call(f"e-mail to {receivers}", content, is_write=True, outages=MAIL)
        if outage is not None and outage.error is not None:
            raise outage.error()
    return {}


REPLACED: Final[Mapping[str, Callable[..., object]]] = {
    "connect": _greet,
    "docmd": _answer,
    "close": _nothing,
    "ehlo_or_helo_if_needed": _nothing,
    "sendmail": _sendmail,
}


_NEVER_AWAITED: Final = re.compile(r"coroutine '(.+)' was never awaited")
_OURS: Final = re.compile(r"(?:Rehearsed)?(?P<owner>Context|Database)\.(?P<method>\w+)")
_OWNERS: Final = {"Context": "ctx", "Database": "ctx.db"}


@contextmanager
def noting_forgotten(root: Path) -> Iterator[None]:
    """Add the coroutines that were never awaited to their run while the block runs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", _NEVER_AWAITED.pattern, RuntimeWarning)
        show = warnings.showwarning

        def note(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            found, run = _NEVER_AWAITED.match(str(message)), current_run()
            if found is None or run is None:
                show(message, category, filename, lineno, file, line)
                return
            path = Path(filename)
            place = f"{path.relative_to(root)}:{lineno}" if is_users(path, root) else None
            run.forgotten.append(Forgotten(name=_as_written(found[1]), place=place))

        warnings.showwarning = note
        yield


def _as_written(name: str) -> str:
    """Return the name with which the handler calls it."""
    ours = _OURS.fullmatch(name)
    return f"{_OWNERS[ours['owner']]}.{ours['method']}" if ours else name


@contextmanager
def quick_sleeps() -> Iterator[None]:
    """Skip the delays between the handler's own retries, in runs whose callee is failing."""
    sleep = asyncio.sleep

    async def quick(delay: float, result: Any = None) -> Any:
        run = current_run()
        is_failing = run is not None and run.failing is not None
        return await sleep(0 if is_failing else delay, result)

    asyncio.sleep = quick
    try:
        yield
    finally:
        asyncio.sleep = sleep
