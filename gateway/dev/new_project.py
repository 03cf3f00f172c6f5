"""`gateway init`: write a working project."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Final

import orjson
import yaml

from gateway.base.errors import CommandFailed
from gateway.config.routes import json_schema
from gateway.dev.render import read_if_there, read_template, written

HANDLERS: Final = "handlers"


def add_module(text: str, route: str, module: str) -> str:
    """Return the file with another module in the `handlers` of a route."""
    section = _mapping(_mapping(_root(text), "routes"), route)
    modules = _value(section, HANDLERS)
    if isinstance(modules, yaml.SequenceNode):
        return _add_item(text, modules, module)
    return _add_key(text, section, f"{HANDLERS}: [{module}]")


def add_schema(text: str, file: str) -> str:
    """Return the file with a `schema` file added."""
    root = _root(text)
    schema = _value(root, "schema")
    if isinstance(schema, yaml.SequenceNode):
        return _add_item(text, schema, file)
    start = root.start_mark.index
    return f"{text[:start]}schema: [{file}]\n\n{text[start:]}"


def _root(text: str) -> yaml.MappingNode:
    root = yaml.compose(text, Loader=yaml.BaseLoader)
    if not isinstance(root, yaml.MappingNode):
        raise CommandFailed("routes.yaml has changed meanwhile")
    return root


def _mapping(node: yaml.MappingNode, key: str) -> yaml.MappingNode:
    value = _value(node, key)
    if not isinstance(value, yaml.MappingNode):
        raise CommandFailed("routes.yaml has changed meanwhile")
    return value


def _value(node: yaml.MappingNode, key: str) -> yaml.Node | None:
    return next((value for name, value in node.value if name.value == key), None)


def _add_item(text: str, items: yaml.SequenceNode, item: str) -> str:
    if items.flow_style:
        if not items.value:
            return _spliced(text, items.start_mark.index + 1, item)
        return _spliced(text, items.value[-1].end_mark.index, f", {item}")
    last = items.value[-1]
    indent = text[_line_start(text, last.start_mark.index) : last.start_mark.index]
    return _spliced(text, _line_end(text, last.end_mark.index), f"\n{indent}{item}")


def _add_key(text: str, section: yaml.MappingNode, key: str) -> str:
    """Insert a key after `provider`, which every route has, and which is on one line."""
    name, value = next(pair for pair in section.value if pair[0].value == "provider")
    if section.flow_style:
        return _spliced(text, value.end_mark.index, f", {key}")
    indent = " " * name.start_mark.column
    return _spliced(text, _line_end(text, value.end_mark.index), f"\n{indent}{key}")


def _spliced(text: str, index: int, more: str) -> str:
    return text[:index] + more + text[index:]


def _line_start(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def _line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end


DISTRIBUTION: Final = "webhook-gateway-server"
COMMENT: Final = "  # "


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """Template values of one provider."""

    provider: str
    title: str
    module: str
    secret: str
    send: str
    new: str


STARTERS: Final[Mapping[str, Starter]] = MappingProxyType(
    {
        starter.provider: starter
        for starter in (
            Starter(
                provider="stripe",
                title="Stripe",
                module="billing",
                secret="STRIPE_WEBHOOK_SECRET",  # noqa: S106 (a variable name)
                send="stripe payment_intent.succeeded",
                new="stripe invoice.paid",
            ),
            Starter(
                provider="github",
                title="GitHub",
                module="repos",
                secret="GITHUB_WEBHOOK_SECRET",  # noqa: S106 (a variable name)
                send="github pull_request.opened",
                new="github issues.opened",
            ),
        )
    }
)


def write_project(directory: Path, providers: Sequence[str]) -> tuple[Path, ...]:
    """Write the missing files and return them. Raises CommandFailed if an existing file differs."""
    files = {directory / name: text for name, text in plan_project(providers).items()}
    missing = {}
    other = []
    for path, text in files.items():
        found = read_if_there(path)
        if found is None:
            missing[path] = text
        elif found != text:
            other.append(path)
    if other:
        told = [f"{path} is there already, with other content" for path in other]
        raise CommandFailed("\n".join([*told, "nothing was written: choose a new directory"]))
    with written(missing):
        return tuple(missing)


def plan_project(providers: Sequence[str]) -> dict[str, str]:
    """Return the files of a project, by relative path."""
    starters = [STARTERS[name] for name in dict.fromkeys(providers)]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    release = version(DISTRIBUTION)
    plan = {
        "config/routes.yaml": read_template("routes.yaml", routes=_routes(starters)),
        "config/routes.schema.json": _schema(),
        "handlers/__init__.py": read_template("handlers.py"),
        "handlers/schema.sql": read_template("schema.sql", tables=_parts(starters, "schema.sql")),
        "pytest.ini": read_template("pytest.ini"),
        "requirements.txt": read_template("requirements.txt", version=release),
        "requirements-dev.txt": read_template("requirements-dev.txt", version=release),
        ".env.example": read_template("env.example", secrets=_parts(starters, "env.example")),
        ".gitignore": read_template("gitignore"),
        ".dockerignore": read_template("dockerignore"),
        "Dockerfile": read_template("Dockerfile", python=python),
        "compose.yaml": read_template(
            "compose.yaml",
            secrets=_lines(f"      {s.secret}: ${{{s.secret}:?set it in .env}}" for s in starters),
        ),
        ".github/workflows/test.yml": read_template(
            "workflow.yml",
            python=python,
            secrets=_lines(f"      {s.secret}: whsec_for_the_checks_only" for s in starters),
        ),
        "README.md": read_template(
            "README.md",
            providers=" and ".join(s.title for s in starters),
            variables=" and ".join(f"`{s.secret}`" for s in starters),
            send=starters[0].send,
            new=starters[0].new,
        ),
    }
    for starter in starters:
        handler = read_template(f"{starter.provider}/handler.py")
        plan[f"handlers/{starter.module}.py"] = handler
        plan[f"tests/test_{starter.module}.py"] = read_template(f"{starter.provider}/test.py")
    return plan


def _routes(starters: Sequence[Starter]) -> str:
    """Return the requested routes, and the other ones as comments."""
    routes = [_part(starter, "route.yaml") for starter in starters]
    for starter in STARTERS.values():
        if starter not in starters:
            hint = f"`gateway new handler {starter.new}` writes its first handler"
            lines = [hint, *_part(starter, "route.yaml").splitlines()]
            routes.append("\n".join(COMMENT + line.removeprefix("  ") for line in lines))
    return "\n\n".join(routes)


def _parts(starters: Sequence[Starter], name: str) -> str:
    return "\n".join(_part(starter, name) for starter in starters)


def _part(starter: Starter, name: str) -> str:
    return read_template(f"{starter.provider}/{name}").rstrip("\n")


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _schema() -> str:
    return orjson.dumps(
        json_schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    ).decode()
