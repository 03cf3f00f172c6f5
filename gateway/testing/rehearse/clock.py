"""Let the user's modules read a later clock, as a run does that is repeated long afterwards."""

import datetime
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from gateway.testing.places import is_users

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


def _later_time_ns() -> int:
    return time.time_ns() + int(_LATER_S) * 1_000_000_000


def _later_gmtime(seconds: float | None = None) -> time.struct_time:
    return time.gmtime(_later_time() if seconds is None else seconds)


def _later_localtime(seconds: float | None = None) -> time.struct_time:
    return time.localtime(_later_time() if seconds is None else seconds)


def _later_strftime(format: str, moment: Any = None) -> str:
    return time.strftime(format, _later_localtime() if moment is None else moment)


def _stand_ins() -> Mapping[int, Any]:
    """Return what replaces each class, function and module, by the identity of the original."""
    classes = {"datetime": _LaterDatetime, "date": _LaterDate}
    functions = {
        "time": _later_time,
        "time_ns": _later_time_ns,
        "gmtime": _later_gmtime,
        "localtime": _later_localtime,
        "strftime": _later_strftime,
    }
    found: dict[int, Any] = {}
    for module, own in ((datetime, classes), (time, functions)):
        stand_in = ModuleType(module.__name__)
        vars(stand_in).update(vars(module) | own)
        found[id(module)] = stand_in
        found |= {id(vars(module)[name]): value for name, value in own.items()}
    return found
