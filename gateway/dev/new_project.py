"""`gateway init`: write a working project, all of its files or none."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Final

import orjson

from gateway.base.errors import CommandFailed
from gateway.config.routes import json_schema

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


_STARTERS: Final = (
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
STARTERS: Final[Mapping[str, Starter]] = {starter.provider: starter for starter in _STARTERS}


def write_project(directory: Path, providers: Sequence[str]) -> tuple[Path, ...]:
    """Write the missing files and return them. Raises CommandFailed if an existing file differs."""
    files = {directory / name: text for name, text in plan_project(providers).items()}
    found = {path: read_if_there(path) for path in files}
    other = [
        f"{path} is there already, with other content"
        for path, text in files.items()
        if found[path] not in (None, text)
    ]
    if other:
        raise CommandFailed("\n".join([*other, "nothing was written: choose a new directory"]))
    missing = {path: text for path, text in files.items() if found[path] is None}
    write_files(missing)
    return tuple(missing)


def plan_project(providers: Sequence[str]) -> dict[str, str]:
    """Return the files of a project, by relative path."""
    starters = [STARTERS[name] for name in dict.fromkeys(providers)]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    release = version(DISTRIBUTION)
    secrets = [starter.secret for starter in starters]
    plan = {
        "config/routes.yaml": read_template("routes.yaml", routes=_routes(starters)),
        "config/routes.schema.json": orjson.dumps(
            json_schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        ).decode(),
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
            secrets="\n".join(f"      {s}: ${{{s}:?set it in .env}}" for s in secrets),
        ),
        ".github/workflows/test.yml": read_template(
            "workflow.yml",
            python=python,
            secrets="\n".join(f"      {s}: whsec_for_the_checks_only" for s in secrets),
        ),
        "README.md": read_template(
            "README.md",
            providers=" and ".join(s.title for s in starters),
            variables=" and ".join(f"`{s}`" for s in secrets),
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


GAP: Final = re.compile(r"\{\{([a-z_]+)\}\}")


def read_template(name: str, **gaps: str) -> str:
    """Return the file `templates/<name>.tmpl` with its placeholders replaced."""
    text = files(__package__).joinpath("templates", f"{name}.tmpl").read_text(encoding="utf-8")
    return GAP.sub(lambda gap: gaps[gap[1]], text)


def read_if_there(path: Path) -> str | None:
    """Return the text of a file, or None if it does not exist."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{path}: cannot be read: {error}") from error


def write_files(files: Mapping[Path, str]) -> None:
    """Write all files or none: each is written beside its place first, then all are moved.

    So a concurrent reader, such as a watching `up`, never sees half of a file.
    """
    drafts: dict[Path, Path] = {}
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            drafts[path] = path.with_name(f".{path.name}.{os.getpid()}")
            drafts[path].write_bytes(text.encode())
            if path.exists():
                path.open("ab").close()  # moving would also replace a read-only file
                drafts[path].chmod(path.stat().st_mode)
        for path, draft in drafts.items():
            draft.replace(path)
    except OSError as error:
        raise CommandFailed(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
