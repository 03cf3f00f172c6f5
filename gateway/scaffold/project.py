"""`gateway init`: a project that works at once."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Final

import orjson

from gateway.errors import CommandFailed
from gateway.routes import json_schema
from gateway.scaffold.files import read_if_there, written
from gateway.scaffold.template import read_template

DISTRIBUTION: Final = "webhook-gateway-server"
COMMENT: Final = "  # "


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """What a project gets for one provider."""

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
                secret="STRIPE_WEBHOOK_SECRET",  # noqa: S106 (the name of one)
                send="stripe payment_intent.succeeded",
                new="stripe invoice.paid",
            ),
            Starter(
                provider="github",
                title="GitHub",
                module="repos",
                secret="GITHUB_WEBHOOK_SECRET",  # noqa: S106 (the name of one)
                send="github pull_request.opened",
                new="github issues.opened",
            ),
        )
    }
)


def write_project(directory: Path, providers: Sequence[str]) -> tuple[Path, ...]:
    """Writes what is not there yet, and returns it. Refuses where that would change a file."""
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
    """The files of a project by their path within it."""
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
    """The routes asked for, and the others as comments."""
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
