"""Checks of Postgres: version, schema, privileges, durability, connections, vacuum."""

from collections.abc import Callable, Mapping, Sequence
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
from gateway.operations.health.findings import (
    Check,
    Finding,
    Installation,
    ok,
    problem,
    run_checks,
    warning,
)

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


def _is_off(name: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda settings: settings[name] == "off"


def _is_limited(name: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda settings: settings[name] not in (None, "0")


SERVER_CHECKS: Final = (
    Check(
        lambda s: s["major"] < OLDEST,
        "warning",
        "version {number}, which is out of support",
        f"upgrade: {OLDEST} or newer, 15 and 18 are tested",
    ),
    Check(lambda s: s["major"] >= OLDEST, "ok", "reachable, version {number}"),
    *(
        Check(
            _is_off(name),
            "problem",
            f"{name} is off: a power cut loses or corrupts what was acknowledged",
            f"set {name} = on in postgresql.conf and reload",
        )
        for name in ("fsync", "full_page_writes")
    ),
    Check(
        lambda s: s["synchronous_commit"] == "off",
        "warning",
        "synchronous_commit is off: the gateway turns it on for its own commits only",
        "turn it on, unless your other writes may be lost in a crash",
    ),
    Check(lambda s: "off" not in s.values(), "ok", "commits wait for the disk"),
)
DEFAULTS_CHECKS: Final = (
    Check(
        lambda d: d["is_read_only"],
        "problem",
        "default_transaction_read_only is on for this role or database: nothing can be claimed",
        "alter role ... reset default_transaction_read_only, or the same for the database",
    ),
    *(
        Check(
            _is_limited(name),
            "warning",
            f"{name} is {{{name}}} for this role or database: it also ends handlers and the"
            " gateway's own work that take longer",
            f"set it to 0 for the gateway's roles (alter role ... set {name} = 0), and limit"
            " handlers by their own timeout",
        )
        for name in ("statement_timeout", "transaction_timeout")
    ),
    Check(
        lambda d: d["isolation"] != OWN_ISOLATION,
        "ok",
        "default_transaction_isolation is {isolation}: handlers run at it, and a run"
        " that fails to serialize comes again; the gateway's own transactions are at"
        f" {OWN_ISOLATION}",
    ),
    # Other tools use the default schema as their own: Alembic's autogenerate would drop all tables
    # of the ledger, and Django would create its tables there.
    Check(
        lambda d: d["creates_in_ledger"] is not None and not d["is_of_up"],
        "warning",
        "the default schema of role {creates_in_ledger} is the gateway's own: Alembic and Django,"
        " if they connect as it, drop or create tables there",
        "alter role {creates_in_ledger} set search_path = public, or give them a role with another"
        " name (docs/own-tables.md)",
    ),
)
IDLE_CHECK: Final = Check(
    lambda i: i["sessions"],
    "warning",
    "{sessions} transactions are open and idle, the oldest ({application}, pid {pid}) for {age}:"
    " vacuum cannot clean up behind it",
    "end it: select pg_terminate_backend({pid})",
)
PRIVILEGE_CHECKS: Final = (
    Check(
        lambda p: p["is_superuser"] and not p["is_of_up"],
        "warning",
        "the role {role} is a superuser: whoever gets hold of its password has the server",
        ROLES,
    ),
    Check(
        lambda p: p["may_migrate"] and not p["is_superuser"] and not p["is_of_up"],
        "warning",
        "the role {role} owns the schema: it could drop what it is only to write to",
        ROLES,
    ),
    # deploy/roles.sql must run again after new tables are created.
    Check(
        lambda p: p["is_limited"] and p["is_operator"] and p["unread"],
        "problem",
        "the role {role} is of {of}, and may not read {unread[0]}",
        "run deploy/roles.sql again, as the owner: it goes with every `gateway migrate`",
    ),
    Check(
        lambda p: p["is_limited"] and not (p["is_operator"] and p["unread"]),
        "ok",
        "the role {role} is of {of}: it may do what they may",
    ),
    Check(
        lambda p: not p["is_limited"] and p["missing"],
        "problem",
        "the role {role} lacks {some}",
        "grant usage on schema gateway, and select, insert, update, delete on all its tables,"
        " to {role}",
    ),
    Check(
        lambda p: not p["is_limited"] and not p["missing"] and not p["may_lock"],
        "problem",
        "the role {role} may not take advisory locks",
        "grant execute on function pg_advisory_xact_lock(bigint) to {role}",
    ),
    Check(
        lambda p: not p["is_limited"] and not p["missing"] and p["may_lock"],
        "ok",
        "the role {role} may read and write the ledger",
    ),
    Check(
        lambda p: not p["is_limited"] and not p["may_migrate"],
        "ok",
        "the role {role} cannot migrate: run `gateway migrate` as {owner}",
    ),
)
BLOATED: Final = Check(
    lambda _: True,
    "warning",
    "gateway.{name} has {dead:,} dead rows beside {live:,}",
    "is autovacuum on? A transaction that somebody left open holds it up, too",
)


async def check_postgres(installation: Installation, connection: Connection) -> list[Finding]:
    """Check the server, and the schema as far as this role may see it."""
    of_up = {"is_of_up": _is_of_up(installation)}
    server = await _one(connection, "read_durability")
    number = server["version"].split()[0]
    major = int(number.split(".")[0].rstrip("abcdefghijklmnopqrstuvwxyz"))
    findings = [*run_checks(POSTGRES, SERVER_CHECKS, server | {"number": number, "major": major})]
    defaults = await _one(connection, "read_defaults")
    findings += run_checks(POSTGRES, DEFAULTS_CHECKS, defaults | of_up)
    findings.append(_connections(installation.settings, await read_room(connection)))
    idle = await _one(connection, "find_idle_transactions", LONG)
    if idle["sessions"]:
        shown = {"application": idle["application"] or "unnamed"}
        shown["age"] = format_roughly(idle["age"])
        findings += run_checks(POSTGRES, [IDLE_CHECK], idle | shown)
    privileges = await _one(connection, "read_privileges")
    missing, groups = privileges["missing"], privileges["groups"]
    if privileges["is_there"]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        known = {
            "of": ", ".join(groups),
            "is_limited": groups and not privileges["may_migrate"],
            "is_operator": OPERATOR in groups,
            "some": ", ".join(missing[:3]) + more,
        }
        findings += run_checks(POSTGRES, PRIVILEGE_CHECKS, privileges | known | of_up)
    if not UNSEEN & set(missing):
        findings.append(await _schema(connection))
        for table in await connection.fetch(QUERIES["list_bloated"], MANY_DEAD_ROWS):
            findings += run_checks(POSTGRES, [BLOATED], dict(table))
    return findings


def is_usable(findings: Sequence[Finding]) -> bool:
    """Whether the ledger itself can be read."""
    return any(f["found"].startswith("schema ") and f["level"] == "ok" for f in findings)


async def _one(connection: Connection, query: str, *arguments: Any) -> dict[str, Any]:
    [row] = await connection.fetch(QUERIES[query], *arguments)
    return dict(row)


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


def _is_of_up(installation: Installation) -> bool:
    """Whether the server belongs to a `gateway up`, and is not reachable by others."""
    settings, up = installation.settings, read_up(installation.settings.data_dir)
    url = None if settings.database_url is None else settings.database_url.get_secret_value()
    return up is not None and up.database_url == url


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
