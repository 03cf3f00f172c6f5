"""The commands `migrate`, `check`, `schema` and `routes`."""

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from gateway.base.errors import SchemaMismatch, StorageUnavailable
from gateway.base.units import format_count, format_duration, format_rate
from gateway.cli.output import console, print_json, print_rows
from gateway.cli.providers import INTEGRITY
from gateway.config.development import stand_ins
from gateway.config.project import Project, database_url, load_project
from gateway.config.registry import Registry
from gateway.config.routes import (
    Config,
    find_open_queues,
    json_schema,
    load_config,
    valid_references,
)
from gateway.config.settings import discover, load_settings
from gateway.dev.known_types import find_doubtful
from gateway.ledger.connection import connect
from gateway.ledger.migrate import check_version, read_schema
from gateway.ledger.migrate import migrate as apply_migrations
from gateway.ledger.names import find_lost_handlers, prepare_routes, settle_names
from gateway.operations.health.attention import advise_lost, find_expiries
from gateway.providers.provider import Integrity

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON array instead of a table.")]


def register(app: typer.Typer) -> None:
    app.command()(migrate)
    app.command()(check)
    app.command()(schema)
    app.command()(routes)


def migrate() -> None:
    """Migrate the database to the schema of this code, then apply the project's own schema files.

    It is safe to run it again, and to run it in several processes at once.
    """
    settings = discover(load_settings())
    config = load_config(settings.config)
    applied = asyncio.run(_migrate(database_url(settings), config))
    for name in applied:
        console().print(f"applied {name}")
    for file in config.schema:
        console().print(f"applied {file}")
    if not applied:
        console().print("the gateway's schema is up to date")


async def _migrate(url: str, config: Config) -> tuple[str, ...]:
    files = read_schema(config.schema)
    connection = await connect(url, name="gateway migrate")
    try:
        applied = await apply_migrations(connection, files)
        await prepare_routes(connection, config)
        return applied
    finally:
        await connection.close()


def check() -> None:
    """Check the configuration: settings, routes, secrets and handlers. Exit 2 with every problem.

    Good as the last step of a build. If GATEWAY_DATABASE_URL is set, the names are also compared
    with the ledger, without changes to it; otherwise no database is needed. Development secrets
    made by `gateway init` or `gateway up` are accepted and reported.
    """
    settings = discover(load_settings(), with_kept_secrets=True)
    project = load_project(settings, with_secrets=True, with_api_keys=True)
    config, now = project.config, datetime.now(UTC)
    references = [
        *valid_references(config.routes, now),
        *(str(ref) for ref in (*config.keys, config.digest_key) if ref),
        *(str(route.verify_token) for route in config.routes if route.verify_token),
    ]
    for reference in stand_ins(settings.dev_secrets, references, os.environ):
        console().print(f"notice: {reference} is not set: a development secret is used")
    for expiry in find_expiries(project.config.routes, now):
        console().print(f"warning: {expiry}", markup=False)
    for warning in _warnings(project.config):
        console().print(f"warning: {warning}", markup=False)
    for lost in asyncio.run(_in_ledger(project)):
        console().print(lost, markup=False)
    for doubt in (*find_open_queues(config), *find_doubtful(project)):
        console().print(f"notice: {doubt}", markup=False)
    counted = _counted(project.config, project.registry)
    console().print(f"{settings.config}: {counted}, all in order")


async def _in_ledger(project: Project) -> list[str]:
    """Return warnings about names, if there is a ledger. Raises ConfigInvalid."""
    if project.settings.database_url is None:
        return []
    try:
        connection = await connect(database_url(project.settings), name="gateway check")
    except StorageUnavailable as error:
        return [f"notice: renamed routes and handlers are not checked: {error}"]
    try:
        await check_version(connection)
        names = await settle_names(connection, project.declared_names(), keep=False)
        lost = await find_lost_handlers(connection, project.identified(names).registry)
    except (StorageUnavailable, SchemaMismatch) as error:
        return [f"notice: renamed routes and handlers are not checked: {error}"]
    finally:
        await connection.close()
    return [
        f"warning: {names.handlers.label(handler)} has a history in the ledger, and is no handler"
        f" any more: {advise_lost(names.handlers.label(handler))}"
        for handler in lost
    ]


def _warnings(config: Config) -> Iterator[str]:
    """Warn about routes with weak or optional verification, or with a handshake that must fail."""
    for route in config.doors:
        integrity = route.provider.integrity
        if not route.enforce:
            yield (
                f"{route.name}: enforce: false, which is ignored outside of `gateway up`: there,"
                " what is not verified is refused"
            )
        if integrity is not Integrity.WHOLE:
            yield f"{route.name}: integrity: {integrity}: {INTEGRITY[integrity]}"
        if route.provider.wants_token and route.verify_token is None:
            yield f"{route.name}: no verify_token: the handshake of its sender is refused"


def _counted(config: Config, registry: Registry) -> str:
    handlers = len(registry.handlers)
    forwards = len(registry.subscriptions) - handlers
    counts = [format_count(len(config.routes), "route"), format_count(handlers, "handler")]
    if forwards:
        counts.append(format_count(forwards, "forward"))
    return ", ".join(counts)


def schema() -> None:
    """Print the JSON Schema of routes.yaml, so that editors complete and check the file.

    Example: [bold]gateway schema > routes.schema.json[/bold], and as the first line of the YAML
    [bold]# yaml-language-server: $schema=routes.schema.json[/bold]
    """
    print_json(json_schema())


def routes(as_json: AsJson = False) -> None:
    """List the routes and their handlers."""
    settings = discover(load_settings())
    project = load_project(settings)
    rows = [
        _row(project.config, project.registry, name) for name in range(len(project.config.routes))
    ]
    if as_json:
        print_json(rows)
        return
    print_rows(
        ["route", "path", "provider", "integrity", "secrets", "handlers"],
        [
            row | {"secrets": " ".join(row["secrets"]), "handlers": _lines(row["handlers"])}
            for row in rows
        ],
        empty="no routes",
    )


def _row(config: Config, registry: Registry, index: int) -> dict[str, Any]:
    route = config.routes[index]
    return {
        "route": route.name,
        "path": route.path if route.secrets else None,
        "provider": route.provider.name,
        "integrity": None if route.provider.is_queue else route.provider.integrity.value,
        "secrets": [str(ref) for ref in route.secrets],
        "handlers": [
            {
                "handler": s.handler,
                "types": list(s.types),
                "timeout": format_duration(s.timeout),
                "attempts": s.retry.attempts,
                "once_per": None if s.once_per is None else str(s.once_per),
                "order_by": None if s.order_by is None else str(s.order_by),
                "concurrency": s.concurrency,
                "rate": None if s.rate is None else format_rate(s.rate.count, s.rate.period),
                "forward": None if s.forward is None else s.forward.place,
            }
            for s in registry.subscriptions
            if s.route == route.name
        ],
    }


def _lines(handlers: list[dict[str, Any]]) -> str:
    return ", ".join(
        f"{h['handler']} ({' '.join(h['types'])})" + (f" to {h['forward']}" if h["forward"] else "")
        for h in handlers
    )
