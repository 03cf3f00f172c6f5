"""`gateway new handler`: write a handler, its table, its test and its entry in the routes."""

import importlib.util
import keyword
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.base.errors import CommandFailed, ConfigInvalid
from gateway.base.model import read_payload
from gateway.config.registry import load_registry
from gateway.config.routes import Config, Route, load_config
from gateway.dev.known_types import check_known
from gateway.dev.modules import add_function, names_of
from gateway.dev.new_project import add_module, add_schema
from gateway.dev.render import HandlerDraft, read_if_there, written
from gateway.dev.sample_row import choose_table, read_subject
from gateway.providers.samples import (
    check_type,
    load_recorded,
    make_sample,
    receive_alone,
    sample_types,
)

MODULE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
SCHEMA: Final = Path("handlers/schema.sql")
"""Default path if the project has no schema file yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRequest:
    """Arguments of `gateway new handler`."""

    route: str
    type: str
    event: Path | None = None
    module: str | None = None
    name: str | None = None
    force: bool = False
    """Whether to accept a type that the provider is not known to send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHandler:
    """Result of `gateway new handler`."""

    name: str
    files: tuple[Path, ...]
    test: Path
    is_guess: bool
    """Whether the payload is a guess: no event was given and the type has no sample."""


def write_handler(config_file: Path, order: HandlerRequest) -> NewHandler:
    """Write all files or none. Afterwards the project must load, as for `gateway check`."""
    config = load_config(config_file)
    route = _route(config, order.route)
    payload = _payload(route, order)
    module, function = _module(route, order), _function(order)
    subject = read_subject(route.provider.name, order.type, payload)
    schema = config.schema[0] if config.schema else SCHEMA
    tables = {path: read_if_there(path) or "" for path in (*config.schema, schema)}
    draft = HandlerDraft(
        route=route.name,
        type=order.type,
        module=module,
        function=function,
        subject=subject,
        table=choose_table(subject, function, tables.values()),
        event=order.event,
    )
    test = Path("tests") / f"test_{function}.py"
    files = _python_files(draft) | _test_file(test, draft)
    if draft.table.sql:
        files[schema] = _appended(tables[schema], draft.table.sql)
    files |= _routes_file(config, route, module, schema if draft.table.sql else None)
    with written(files):
        _check(config, route, module, schema if draft.table.sql else None)
    return NewHandler(
        name=f"{module}.{function}",
        files=tuple(files),
        test=test,
        is_guess=order.event is None and order.type not in sample_types(route.provider.name),
    )


def _route(config: Config, name: str) -> Route:
    route = next((route for route in config.routes if route.name == name), None)
    if route is None:
        known = ", ".join(route.name for route in config.routes)
        raise CommandFailed(f"there is no route {name!r} in {config.file}: it has {known}")
    if route.provider.is_queue:
        raise CommandFailed(
            f"{name} is a queue: only your own code knows what its jobs look like, so that one "
            "for them cannot be made from a sample"
        )
    return route


def _payload(route: Route, order: HandlerRequest) -> Any:
    provider = route.provider.name
    try:
        check_type(route.provider, order.type)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    if route.types is not None and not any(fnmatchcase(order.type, glob) for glob in route.types):
        raise CommandFailed(
            f"the route {route.name} does not take {order.type}: add it to its `types` first"
        )
    if order.event is None:
        check_known(provider, order.type, force=order.force)
        now = datetime.now(UTC)
        item = receive_alone(
            route.provider, make_sample(route.provider, order.type, now=now), now=now
        )
        return read_payload(item.headers, item.body)
    if order.event.is_absolute() or ".." in order.event.parts:
        raise CommandFailed(
            f"--event: found {order.event}; expected a file of this project, such as "
            "tests/events/x.json: the test reads it too"
        )
    return orjson.loads(load_recorded(order.event, provider=provider, type=order.type).body)


def _module(route: Route, order: HandlerRequest) -> str:
    """Return the module to write to.

    It must belong to this project, not to an installed package.
    """
    own = f"handlers.{route.name.replace('-', '_')}"
    module = order.module or next(iter(route.handlers), own)
    if not MODULE.fullmatch(module) or any(map(keyword.iskeyword, module.split("."))):
        raise CommandFailed(f"--module: found {module!r}; expected such as handlers.billing")
    top = module.partition(".")[0]
    is_here = Path(top).is_dir() or Path(f"{top}.py").is_file()
    if not is_here and importlib.util.find_spec(top) is not None:
        raise CommandFailed(
            f"{module} is a module of another package, {top}, and not of this project: "
            "name one with --module"
        )
    return module


def _function(order: HandlerRequest) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", order.type.lower()).strip("_")
    name = order.name or f"on_{words}"
    if not name.isidentifier() or keyword.iskeyword(name):
        raise CommandFailed(f"--name: found {name!r}; expected the name of a function")
    return name


def _python_files(draft: HandlerDraft) -> dict[Path, str]:
    path = _path(draft.module)
    source = read_if_there(path)
    if source is None:
        files = {folder / "__init__.py": "" for folder in path.parents if not folder.exists()}
        source = f'"""Handlers of {draft.route} events."""\n'
    else:
        files = {}
        taken = names_of(path, source).get(draft.function)
        if taken:
            raise CommandFailed(
                f"{path}:{taken}: {draft.function} is there already; give another --name"
            )
    return files | {path: add_function(path, source, draft.function_text(), draft.imports)}


def _path(module: str) -> Path:
    path = Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _test_file(path: Path, draft: HandlerDraft) -> dict[Path, str]:
    if path.exists():
        raise CommandFailed(f"{path} is there already; give the handler another --name")
    return {path: draft.test_text()}


def _appended(text: str, more: str) -> str:
    return f"{text.rstrip()}\n\n{more}" if text.strip() else more


def _routes_file(
    config: Config, route: Route, module: str, schema: Path | None
) -> Mapping[Path, str]:
    text = before = read_if_there(config.file) or ""
    if module not in route.handlers:
        text = add_module(text, route.name, module)
    if schema is not None and not config.schema:
        text = add_schema(text, schema.as_posix())
    return {} if text == before else {config.file: text}


def _check(config: Config, route: Route, module: str, schema: Path | None) -> None:
    """Check that routes.yaml has the intended content and that the handlers load."""
    sys.dont_write_bytecode = True  # leave no bytecode behind if the files are removed again
    try:
        found = load_config(config.file)
        load_registry(found)
    except ConfigInvalid as error:
        raise CommandFailed(f"{error}\nnothing was written: the project would not load") from error
    handlers = tuple(dict.fromkeys([*route.handlers, module]))
    expected = [replace(r, handlers=handlers) if r is route else r for r in config.routes]
    same_routes = [_unplaced(r) for r in found.routes] == [_unplaced(r) for r in expected]
    if not same_routes or found.schema != (config.schema or ((schema,) if schema else ())):
        raise CommandFailed(
            f"{config.file} could not be changed: add {module} to the handlers of {route.name} "
            "yourself, and run this again; nothing was written"
        )


def _unplaced(route: Route) -> Route:
    return replace(route, line=0)
