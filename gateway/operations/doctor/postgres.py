"""Checks of Postgres: version, schema, privileges, durability, connections, vacuum."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from gateway.base.errors import SchemaMismatch, StorageUnavailable
from gateway.base.units import format_roughly
from gateway.config.development import read_up
from gateway.config.settings import Settings
from gateway.ledger.budget import (
    SERVE_CONNECTIONS,
    ConnectionRoom,
    handler_connections,
    read_room,
    worker_connections,
)
from gateway.ledger.connection import OWN_ISOLATION, QUERIES, Connection
from gateway.ledger.migrate import applied_version, check_version, read_migrations
from gateway.operations.doctor.finding import Finding, Installation, ok, problem, warning

POSTGRES: Final = "Postgres"
OLDEST: Final = 14
"""The oldest major version that still gets security fixes."""

LONG: Final = timedelta(minutes=5)
UNSEEN: Final = frozenset({"usage on schema gateway", "select on gateway.migrations"})
"""Without these privileges not even the schema version can be read."""

OPERATOR: Final = "gateway_operator"
"""The role that may read every table."""
ROLES: Final = (
    "for `serve` and `worker`, make roles that may do what they do and no more:"
    " deploy/roles.sql (this is for whoever runs `gateway migrate`)"
)

MANY_DEAD_ROWS: Final = 1_000_000


async def check_postgres(installation: Installation, connection: Connection) -> list[Finding]:
    """Check the server, and the schema as far as this role may see it."""
    findings = [*_version(await _one(connection, "describe_server"))]
    findings += _durability(await _one(connection, "read_durability"))
    defaults = await _one(connection, "read_defaults")
    findings += _defaults(defaults)
    if not _is_of_up(installation):
        findings += _default_schema(defaults["creates_in_ledger"])
    findings.append(_connections(installation.settings, await read_room(connection)))
    findings += _idle(await _one(connection, "find_idle_transactions", LONG))
    privileges = await _one(connection, "read_privileges")
    if privileges["is_there"]:
        if not _is_of_up(installation):
            findings += _excess(privileges)
        findings += _privileges(privileges)
    if not UNSEEN & set(privileges["missing"]):
        findings.append(await _schema(connection))
        for table in await connection.fetch(QUERIES["list_bloated"], MANY_DEAD_ROWS):
            findings.append(_bloated(dict(table)))
    return findings


def is_usable(findings: Sequence[Finding]) -> bool:
    """Whether the ledger itself can be read."""
    return any(f["found"].startswith("schema ") and f["level"] == "ok" for f in findings)


async def _one(connection: Connection, query: str, *arguments: Any) -> dict[str, Any]:
    [row] = await connection.fetch(QUERIES[query], *arguments)
    return dict(row)


def _version(server: dict[str, Any]) -> Iterator[Finding]:
    version = str(server["version"]).split()[0]
    if int(version.split(".")[0].rstrip("abcdefghijklmnopqrstuvwxyz")) < OLDEST:
        yield warning(
            POSTGRES,
            f"version {version}, which is out of support",
            f"upgrade: {OLDEST} or newer, 15 and 18 are tested",
        )
    else:
        yield ok(POSTGRES, f"reachable, version {version}")


async def _schema(connection: Connection) -> Finding:
    present, wanted = await applied_version(connection), read_migrations()[-1].version
    try:
        await check_version(connection)
    except SchemaMismatch as error:
        found, _, advice = str(error).partition(": ")
        return problem(POSTGRES, found, advice)
    except StorageUnavailable as error:
        return problem(POSTGRES, str(error), "name the primary in GATEWAY_DATABASE_URL")
    if present > wanted:
        return ok(POSTGRES, f"schema {present}, newer than this code ({wanted}), which still fits")
    return ok(POSTGRES, f"schema {present}, as this code needs it")


def _durability(settings: dict[str, Any]) -> Iterator[Finding]:
    for name in ("fsync", "full_page_writes"):
        if settings[name] == "off":
            yield problem(
                POSTGRES,
                f"{name} is off: a power cut loses or corrupts what was acknowledged",
                f"set {name} = on in postgresql.conf and reload",
            )
    if settings["synchronous_commit"] == "off":
        yield warning(
            POSTGRES,
            "synchronous_commit is off: the gateway turns it on for its own commits only",
            "turn it on, unless your other writes may be lost in a crash",
        )
    if "off" not in settings.values():
        yield ok(POSTGRES, "commits wait for the disk")


def _defaults(found: dict[str, Any]) -> Iterator[Finding]:
    if found["is_read_only"]:
        yield problem(
            POSTGRES,
            "default_transaction_read_only is on for this role or database: nothing can be claimed",
            "alter role ... reset default_transaction_read_only, or the same for the database",
        )
    for name in ("statement_timeout", "transaction_timeout"):
        if found[name] not in (None, "0"):
            yield warning(
                POSTGRES,
                f"{name} is {found[name]} for this role or database: it also ends handlers and the"
                " gateway's own work that take longer",
                f"set it to 0 for the gateway's roles (alter role ... set {name} = 0), and limit"
                " handlers by their own timeout",
            )
    if found["isolation"] != OWN_ISOLATION:
        yield ok(
            POSTGRES,
            f"default_transaction_isolation is {found['isolation']}: handlers run at it, and a run"
            " that fails to serialize comes again; the gateway's own transactions are at"
            f" {OWN_ISOLATION}",
        )


def _default_schema(role: str | None) -> Iterator[Finding]:
    """Warn if the default schema is the ledger's.

    Other tools use the default schema as their own: Alembic's autogenerate would drop all tables of
    the ledger, and Django would create its tables there.
    """
    if role is not None:
        yield warning(
            POSTGRES,
            f"the default schema of role {role} is the gateway's own: Alembic and Django, if they"
            " connect as it, drop or create tables there",
            f"alter role {role} set search_path = public, or give them a role with another name"
            " (docs/own-tables.md)",
        )


def _is_of_up(installation: Installation) -> bool:
    """Whether the server belongs to a `gateway up`, and is not reachable by others."""
    settings, up = installation.settings, read_up(installation.settings.data_dir)
    url = None if settings.database_url is None else settings.database_url.get_secret_value()
    return up is not None and up.database_url == url


def _excess(found: dict[str, Any]) -> Iterator[Finding]:
    role = found["role"]
    if found["is_superuser"]:
        yield warning(
            POSTGRES,
            f"the role {role} is a superuser: whoever gets hold of its password has the server",
            ROLES,
        )
    elif found["may_migrate"]:
        yield warning(
            POSTGRES,
            f"the role {role} owns the schema: it could drop what it is only to write to",
            ROLES,
        )


def _privileges(found: dict[str, Any]) -> Iterator[Finding]:
    role = found["role"]
    if found["groups"] and not found["may_migrate"]:
        yield _grouped(role, found)
        return
    if found["missing"]:
        some = ", ".join(found["missing"][:3])
        more = f" and {len(found['missing']) - 3} more" if len(found["missing"]) > 3 else ""
        yield problem(
            POSTGRES,
            f"the role {role} lacks {some}{more}",
            "grant usage on schema gateway, and select, insert, update, delete on all its tables,"
            f" to {role}",
        )
    elif not found["may_lock"]:
        yield problem(
            POSTGRES,
            f"the role {role} may not take advisory locks",
            f"grant execute on function pg_advisory_xact_lock(bigint) to {role}",
        )
    else:
        yield ok(POSTGRES, f"the role {role} may read and write the ledger")
    if not found["may_migrate"]:
        yield ok(
            POSTGRES,
            f"the role {role} cannot migrate: run `gateway migrate` as {found['owner']}",
        )


def _grouped(role: str, found: dict[str, Any]) -> Finding:
    """Check a role of deploy/roles.sql, which must run again after new tables are created."""
    groups = ", ".join(found["groups"])
    if OPERATOR in found["groups"] and found["unread"]:
        return problem(
            POSTGRES,
            f"the role {role} is of {groups}, and may not read {found['unread'][0]}",
            "run deploy/roles.sql again, as the owner: it goes with every `gateway migrate`",
        )
    return ok(POSTGRES, f"the role {role} is of {groups}: it may do what they may")


def _connections(settings: Settings, room: ConnectionRoom | None) -> Finding:
    per_worker = worker_connections(settings)
    told = f"a worker opens up to {per_worker}, a serve {SERVE_CONNECTIONS}"
    if room is None:
        return ok(
            POSTGRES,
            f"reached through a pooler, whose limits this cannot see: {told} (max_client_conn);"
            f" the handlers of a worker hold up to {handler_connections(settings)} servers, and"
            " there must be more than all workers' hold (default_pool_size): docs/production.md",
        )
    allowed = f"{room.most} connections are allowed ({room.by}), {room.in_use} are in use: {told}"
    if per_worker + SERVE_CONNECTIONS > room.most:
        return warning(
            POSTGRES,
            allowed,
            f"raise {room.by}, lower GATEWAY_HANDLER_CONNECTIONS or GATEWAY_CONCURRENCY, or put a"
            " pooler before it: docs/production.md",
        )
    return ok(POSTGRES, allowed)


def _bloated(table: dict[str, Any]) -> Finding:
    return warning(
        POSTGRES,
        f"gateway.{table['name']} has {table['dead']:,} dead rows beside {table['live']:,}",
        "is autovacuum on? A transaction that somebody left open holds it up, too",
    )


def _idle(found: dict[str, Any]) -> Iterator[Finding]:
    if found["sessions"]:
        yield warning(
            POSTGRES,
            f"{found['sessions']} transactions are open and idle, the oldest"
            f" ({found['application'] or 'unnamed'}, pid {found['pid']}) for"
            f" {format_roughly(found['age'])}: vacuum cannot clean up behind it",
            f"end it: select pg_terminate_backend({found['pid']})",
        )
