"""Wrap the database drivers that connect in C, because Python reports no audit event for them.

A wrapped function asks the active guard; without a guard it behaves as before. In each driver the
wrapped function is the one through which all its ways to connect lead. The driver looks it up at
each call, so it does not matter under which name a module imported `connect`.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, reduce, wraps
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

from gateway.testing.guard import Guard, current_guard

WRAPPED_PACKAGES: Final = ("psycopg", "psycopg_binary", "psycopg_c", "psycopg2", "MySQLdb")
OWN_PACKAGES: Final = ("asyncpg", "cryptography", "hiredis", "httptools", "orjson", "pydantic_core")
"""Dependencies of the gateway itself. None of them connects in C."""
CONNECTS: Final = b"connect\0"
"""The entry for `connect` in the symbol table of a library that imports or exports the function."""


def wrap_drivers() -> None:
    """Wrap the drivers that are imported, and each other one when it is imported."""
    if not any(isinstance(finder, _DriverFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DriverFinder())
    for name in DRIVERS.keys() & sys.modules.keys():
        _wrap(sys.modules[name])


def find_unguarded() -> list[str]:
    """Return the imported packages that may connect in C and are not wrapped.

    Only the kernel can stop those. A package that names `connect` does not necessarily connect, but
    it cannot be ruled out here.
    """
    known = {*WRAPPED_PACKAGES, *OWN_PACKAGES, *sys.stdlib_module_names}
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    files: dict[str, set[Path]] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        package = name.partition(".")[0]
        if package not in known and isinstance(file, str) and file.endswith(suffixes):
            files.setdefault(package, set()).add(Path(file))
    return sorted(
        package for package, found in files.items() if _may_connect(package, frozenset(found))
    )


@cache
def _may_connect(package: str, files: frozenset[Path]) -> bool:
    """Search the files for `connect`. The result is cached, because the files are large."""
    return any(map(_names_connect, [*files, *_bundled(package)]))


def _bundled(package: str) -> Iterator[Path]:
    """Return the libraries bundled in a wheel: `<name>.libs` on Linux, `.dylibs` on macOS."""
    file = getattr(sys.modules.get(package), "__file__", None)
    if file is None:
        return
    folder = Path(file).parent
    yield from folder.glob(".dylibs/*")
    for distribution in _distributions().get(package, ()):
        yield from folder.parent.glob(f"{distribution.replace('-', '_')}.libs/*")


@cache
def _distributions() -> Mapping[str, Sequence[str]]:
    return importlib.metadata.packages_distributions()


def _names_connect(file: Path) -> bool:
    try:
        return CONNECTS in file.read_bytes()
    except OSError:
        return True


class _DriverFinder(importlib.abc.MetaPathFinder):
    """Import hook that wraps a driver right after its import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in DRIVERS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            _wrap(module)

        spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec


def _wrap(module: ModuleType) -> None:
    """Replace the functions of a driver by ones that ask the guard first, unless it is done."""
    if getattr(module, "_is_guarded", False):
        return
    vars(module)["_is_guarded"] = True
    path, check = DRIVERS[module.__name__]
    *owners, name = path.split(".")
    owner: Any = reduce(getattr, owners, module)
    function = getattr(owner, name)

    @wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        if (guard := current_guard()) is not None:
            check(guard, *args, **options)
        return function(*args, **options)

    setattr(owner, name, checked)


def _check(
    guard: Guard, fields: Mapping[str, Any], *, port: int | None, is_async: bool = False
) -> None:
    host = fields.get("host") or fields.get("hostaddr") or "localhost"
    guard.check_driver(str(host), str(fields.get("port") or port or ""), is_async=is_async)


def _check_psycopg(guard: Guard, conninfo: str, *_: Any, **__: Any) -> None:
    from psycopg.conninfo import conninfo_to_dict

    is_async = _is_called_by("psycopg.connection_async")
    _check(guard, conninfo_to_dict(conninfo), port=5432, is_async=is_async)


def _check_psycopg_pool(guard: Guard, pool: Any, *_: Any, **__: Any) -> None:
    """Check `getconn` of a pool, so that its users are refused at once.

    A pool connects in threads of its own, and its users would only wait.
    """
    from psycopg.conninfo import conninfo_to_dict

    fields = conninfo_to_dict(pool.conninfo) if isinstance(pool.conninfo, str) else {}
    fields |= pool.kwargs if isinstance(pool.kwargs, dict) else {}
    _check(guard, fields, port=5432, is_async=inspect.iscoroutinefunction(type(pool).close))


def _check_psycopg2(guard: Guard, dsn: str, *_: Any, **options: Any) -> None:
    parse_dsn = sys.modules["psycopg2"].extensions.parse_dsn
    is_async = bool(options.get("async") or options.get("async_"))
    _check(guard, parse_dsn(dsn), port=5432, is_async=is_async)


def _check_mysqlclient(guard: Guard, _: Any, *args: Any, **options: Any) -> None:
    fields = {"host": options.get("unix_socket") or (args[0] if args else None), **options}
    _check(guard, fields, port=3306)


def _note_sleep(guard: Guard, *_: object) -> None:
    """Record `time.sleep`, which blocks the event loop but does not connect.

    Python 3.11 and 3.12 report no audit event for it either.
    """
    guard.note_blocking("time.sleep")


def _is_called_by(module: str) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back
    return False


DRIVERS: Final[Mapping[str, tuple[str, Callable[..., None]]]] = {
    "psycopg.generators": ("connect", _check_psycopg),
    "psycopg_pool.pool": ("ConnectionPool.getconn", _check_psycopg_pool),
    "psycopg_pool.pool_async": ("AsyncConnectionPool.getconn", _check_psycopg_pool),
    "psycopg2": ("_connect", _check_psycopg2),
    "MySQLdb.connections": ("Connection.__init__", _check_mysqlclient),
    "time": ("sleep", _note_sleep),
}
"""By module: the function through which it connects, and the check of its arguments."""
