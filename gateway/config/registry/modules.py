"""Imports the modules with handlers, and reports invalid handlers."""

import ast
import importlib
import inspect
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from gateway.base.problems import CREDENTIAL, Unexpected
from gateway.config.registry.decorator import (
    HandlerFunction,
    HandlerSpec,
    Resource,
    is_resource,
    spec_of,
)

SHOWN_CHARS: Final = 200
POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
OWN_FOLDER: Final = Path(__file__).parents[2]


class Broken(Unexpected):
    """A module that cannot be imported, with the line of the user's code that raised the error."""

    def __init__(self, *, found: str, expected: str, file: str, line: int) -> None:
        self.file = file
        self.line = line
        super().__init__(found=found, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decorated:
    """A function with the options of its `@handler`."""

    name: str
    function: HandlerFunction
    spec: HandlerSpec
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """The handlers and resources of a module, in order, and all problems with them."""

    handlers: tuple[Decorated | Unexpected, ...]
    resources: tuple[Resource, ...] = ()


def read_module(module_name: str) -> Module:
    """Import a module and find its handlers and resources."""
    try:
        module = _import(module_name)
    except Unexpected as problem:
        return Module(handlers=(problem,))
    handlers = (*_overwritten(module), *_decorated(module))
    if handlers:
        return Module(handlers=handlers, resources=tuple(_resources(module)))
    found = f"{module_name}, which defines no @handler"
    return Module(handlers=(Unexpected(found=found, expected="a module that defines one"),))


def _resources(module: ModuleType) -> Iterator[Resource]:
    """Find the resources that the module defines or imports. Imported ones are shared."""
    for thing in vars(module).values():
        if isinstance(thing, FunctionType) and is_resource(thing):
            yield Resource(name=thing.__name__, function=thing, place=_place_of(thing))


def _import(name: str) -> ModuleType:
    """Import from the working directory first, as `python -m` does."""
    folder = str(Path.cwd())
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        found = f"{name}, which does not import: {_told(error)}{_shadow(name, error)}"
        expected = f"a module that imports from {folder}"
        place = _place_of_error(error)
        if place is None:
            raise Unexpected(found=found, expected=expected) from None
        file, line = place
        raise Broken(found=found, expected=expected, file=_shown(file), line=line) from None


def _told(error: BaseException) -> str:
    """Format an exception on one line, without the message if that may contain a credential."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    if CREDENTIAL.search(text):
        text = type(error).__name__
    return text[:SHOWN_CHARS]


def _shadow(name: str, error: BaseException) -> str:
    """Return a note if another package hides the user's folder.

    A folder without an __init__.py has a lower priority than a package of the same name elsewhere.
    """
    top = name.partition(".")[0]
    package = sys.modules.get(top)
    elsewhere = package is not None and package.__file__ and not _is_theirs(Path(package.__file__))
    if isinstance(error, ModuleNotFoundError) and elsewhere and Path(top).is_dir():
        return f" (another package {top} comes first: put an __init__.py into {top}/)"
    return ""


def _place_of_error(error: BaseException) -> tuple[str, int] | None:
    """Return the innermost line of the user's own code.

    That is code under the working directory, except for libraries and the gateway itself.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    frames = traceback.walk_tb(error.__traceback__)
    places = [(frame.f_code.co_filename, line) for frame, line in frames]
    theirs = [(file, line) for file, line in places if _is_theirs(Path(file))]
    return theirs[-1] if theirs else None


def _is_theirs(file: Path) -> bool:
    outside = "site-packages" in file.parts or file.is_relative_to(OWN_FOLDER)
    return file.is_relative_to(Path.cwd()) and not outside


def _place(file: str, line: int) -> str:
    return f"{_shown(file)}:{line}"


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _decorated(module: ModuleType) -> Iterator[Decorated | Unexpected]:
    """Find the handlers that the module defines. Imported handlers belong to another module."""
    seen: set[int] = set()
    for name, thing in vars(module).items():
        if inspect.isclass(thing) and thing.__module__ == module.__name__:
            yield from _decorated_methods(thing)
        spec = spec_of(thing)
        imported = inspect.isfunction(thing) and thing.__module__ != module.__name__
        if spec is not None and not imported and id(thing) not in seen:
            seen.add(id(thing))
            yield _checked(name, thing, spec)


def _decorated_methods(cls: type) -> Iterator[Unexpected]:
    for name, thing in vars(cls).items():
        if spec_of(thing) is not None:
            yield _no_handler(f"{cls.__qualname__}.{name}, a method", name)


def _checked(name: str, thing: Any, spec: HandlerSpec) -> Decorated | Unexpected:
    if not isinstance(thing, FunctionType):
        return _no_handler(f"{name}, which is no function", name)
    place = _place_of(thing)
    if not inspect.iscoroutinefunction(thing):
        return _no_handler(f"def {name} ({place}), which is not async", name)
    parameters = inspect.signature(thing).parameters
    if [parameter.kind in POSITIONAL for parameter in parameters.values()] != [True, True]:
        names = ", ".join(str(parameter) for parameter in parameters.values())
        return _no_handler(f"async def {name}({names}) ({place})", name)
    own_name = spec.name or f"{thing.__module__}.{thing.__name__}"
    return Decorated(name=own_name, function=thing, spec=spec, place=place)


def _no_handler(found: str, name: str) -> Unexpected:
    return Unexpected(
        found=found, expected=f"async def {name}(event, ctx) at the top of the module"
    )


def _place_of(function: FunctionType) -> str:
    code = inspect.unwrap(function).__code__
    return _place(code.co_filename, code.co_firstlineno)


def _overwritten(module: ModuleType) -> Iterator[Unexpected]:
    """Find handlers that a later function of the same name overwrites, by parsing the source."""
    source = Path(module.__file__ or "")
    if source.suffix != ".py" or not source.exists():
        return
    lines: dict[str, list[int]] = defaultdict(list)
    for node in ast.parse(source.read_bytes()).body:
        if isinstance(node, ast.AsyncFunctionDef) and _looks_decorated(node):
            lines[node.name].append(node.lineno)
    for name, places in lines.items():
        if len(places) > 1 and spec_of(getattr(module, name, None)) is not None:
            where = " and ".join(_place(str(source), line) for line in places)
            yield Unexpected(found=f"two handlers named {name} ({where})", expected="one name each")


def _looks_decorated(node: ast.AsyncFunctionDef) -> bool:
    return any(isinstance(decorator, ast.Call) for decorator in node.decorator_list)
