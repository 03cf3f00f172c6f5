"""`gateway new handler`: write a handler in a module of its own, with its table and its test."""

import glob
import importlib.util
import json
import keyword
import re
from collections.abc import Sequence
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
from gateway.dev.new_project import read_if_there, read_template, write_files
from gateway.dev.sample_row import Column, RowTable, SampleRow, choose_table, read_row
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
ONE_LINE_LIST: Final = re.compile(r"(\s*handlers: *\[)([^]#]*)(\].*)")
LONGEST_LINE: Final = 88
"""The default of black and ruff."""


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
    to_add: tuple[str, ...]
    """Lines that the user has to add to routes.yaml."""
    is_guess: bool
    """Whether the payload is a guess: no event was given and the type has no sample."""


def write_handler(config_file: Path, request: HandlerRequest) -> NewHandler:
    """Write all files or none. The project must load, as for `gateway check`."""
    config = load_config(config_file)
    route = _route(config, request.route)
    payload = _payload(route, request)
    function = _function(request)
    module = request.module or _default_module(route, function)
    _check_module(module)
    path, test = _path(module), Path("tests", f"test_{function}.py")
    _check_free(path, test)
    _check_project(config, module)
    row = read_row(route.provider.name, request.type, payload)
    schema = config.schema[0] if config.schema else SCHEMA
    tables = {file: read_if_there(file) or "" for file in (*config.schema, schema)}
    table = choose_table(row, function, tables.values())
    draft = HandlerDraft(request=request, module=module, function=function, row=row, table=table)
    files = {folder / "__init__.py": "" for folder in path.parents if not folder.exists()}
    files |= {path: draft.handler_text(), test: draft.test_text()}
    to_add = []
    if table.sql:
        files[schema] = f"{tables[schema].rstrip()}\n\n{table.sql}".lstrip()
        to_add += [] if config.schema else [f"schema: [{schema.as_posix()}]"]
    if module not in route.handlers:
        routes = _add_module(config, route, module)
        files |= {config.file: routes} if routes else {}
        listed = ", ".join([*route.handlers, module])
        to_add += [] if routes else [f"handlers: [{listed}]   # of the route {route.name}"]
    write_files(files)
    return NewHandler(
        name=f"{module}.{function}",
        files=tuple(files),
        test=test,
        to_add=tuple(to_add),
        is_guess=request.event is None and request.type not in sample_types(route.provider.name),
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


def _payload(route: Route, request: HandlerRequest) -> Any:
    provider = route.provider.name
    try:
        check_type(route.provider, request.type)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    if route.types is not None and not any(fnmatchcase(request.type, glob) for glob in route.types):
        raise CommandFailed(
            f"the route {route.name} does not take {request.type}: add it to its `types` first"
        )
    if request.event is None:
        check_known(provider, request.type, force=request.force)
        now = datetime.now(UTC)
        sample = make_sample(route.provider, request.type, now=now)
        item = receive_alone(route.provider, sample, now=now)
        return read_payload(item.headers, item.body)
    if request.event.is_absolute() or ".." in request.event.parts:
        raise CommandFailed(
            f"--event: found {request.event}; expected a file of this project, such as "
            "tests/events/x.json: the test reads it too"
        )
    return orjson.loads(load_recorded(request.event, provider=provider, type=request.type).body)


def _function(request: HandlerRequest) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", request.type.lower()).strip("_")
    name = request.name or f"on_{words}"
    if not name.isidentifier() or keyword.iskeyword(name):
        raise CommandFailed(f"--name: found {name!r}; expected the name of a function")
    return name


def _default_module(route: Route, function: str) -> str:
    """Return the module that the route names and that is missing, or else a new one beside them."""
    missing = [module for module in route.handlers if not _exists(module)]
    package = route.handlers[0].rpartition(".")[0] if route.handlers else "handlers"
    return missing[0] if missing else f"{package}.{function.removeprefix('on_')}".lstrip(".")


def _path(module: str) -> Path:
    return Path(*module.split(".")).with_suffix(".py")


def _exists(module: str) -> bool:
    return _path(module).exists() or _path(module).with_suffix("").exists()


def _check_module(module: str) -> None:
    """Check that this can be a module of the project, and not of an installed package."""
    if not MODULE.fullmatch(module) or any(map(keyword.iskeyword, module.split("."))):
        raise CommandFailed(f"--module: found {module!r}; expected such as handlers.billing")
    top = module.partition(".")[0]
    if not _exists(top) and importlib.util.find_spec(top) is not None:
        raise CommandFailed(
            f"{module} is a module of another package, {top}, and not of this project: "
            "name one with --module"
        )


def _check_free(path: Path, test: Path) -> None:
    """Check that no file is replaced, and that no module is hidden by a package of its name."""
    hidden = [folder.with_suffix(".py") for folder in path.parents if folder.name]
    for file in (path, path.with_suffix(""), test, *hidden):
        if file.exists():
            raise CommandFailed(f"{file} is there already; give another --name or --module")


def _check_project(config: Config, module: str) -> None:
    """Check that all but the new module loads."""
    routes = tuple(
        replace(route, handlers=tuple(name for name in route.handlers if name != module))
        for route in config.routes
    )
    try:
        load_registry(replace(config, routes=routes))
    except ConfigInvalid as error:
        raise CommandFailed(f"{error}\nnothing was written: the project does not load") from error


def _add_module(config: Config, route: Route, module: str) -> str | None:
    """Return routes.yaml with another module in the `handlers` of the route.

    None if the route has no such list, or one of another form than `handlers: [a, b]`.
    """
    line = config.lines.get(("routes", route.name, "handlers"))
    lines = config.file.read_bytes().decode().split("\n")
    found = None if line is None else ONE_LINE_LIST.fullmatch(lines[line - 1])
    if line is None or found is None:
        return None
    start, listed, end = found.groups()
    lines[line - 1] = f"{start}{f'{listed}, ' if listed.strip() else ''}{module}{end}"
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDraft:
    """The text of a new handler and of its test."""

    request: HandlerRequest
    module: str
    function: str
    row: SampleRow
    table: RowTable

    def handler_text(self) -> str:
        row = self.row
        return read_template(
            "new_handler.py",
            route=self.request.route,
            imports="from datetime import datetime\n\n" if row.uses_datetime else "",
            type=_text(glob.escape(self.request.type)),
            signature=_fitted(
                f"async def {self.function}(event: Event, ctx: Context) -> None:",
                f"async def {self.function}(\n    event: Event, ctx: Context\n) -> None:",
            ),
            summary=row.summary,
            object=self._object,
            table=_text(self.table.name),
            key=_mapping(row.key) if len(row.key) > 1 else f"{{{_item(row.key[0])}}}",
            values=_mapping(self.table.values),
            version=row.version,
        )

    def test_text(self) -> str:
        arguments = f"{_text(self.request.route)}, {_text(self.request.type)}"
        if self.request.event is not None:
            arguments += f", file={_text(self.request.event.as_posix())}"
        same = [f"row[{_text(c.name)}] == {c.source}" for c in (*self.row.key, *self.table.values)]
        return read_template(
            "new_handler_test.py",
            handler=_fitted(
                f"from {self.module} import {self.function}",
                f"from {self.module} import (\n    {self.function},\n)",
            ),
            function=self.function,
            event=_fitted(
                f"    event = make_event({arguments})",
                f"    event = make_event(\n        {arguments}\n    )",
            ),
            table=self.table.name,
            object=self._object,
            asserts="\n".join(
                _fitted(f"    assert {one}", f"    assert (\n        {one}\n    )") for one in same
            ),
        )

    @property
    def _object(self) -> str:
        """The line that names the object of the event, if anything is read from it."""
        row = self.row
        sources = [row.version, *(column.source for column in (*row.key, *self.table.values))]
        is_used = any(f"{row.variable}[" in source for source in sources)
        return f"    {row.variable} = {row.object}\n" if is_used else ""


def _mapping(columns: Sequence[Column]) -> str:
    items = "".join(f"            {_item(column)},\n" for column in columns)
    return f"{{\n{items}        }}"


def _item(column: Column) -> str:
    return f"{_text(column.name)}: {column.source}"


def _fitted(line: str, wrapped: str) -> str:
    """Return the line, or what a formatter makes of it if it is too long."""
    return line if len(line) <= LONGEST_LINE else wrapped


def _text(value: str) -> str:
    """Return a string literal with double quotes."""
    return json.dumps(value, ensure_ascii=False)
