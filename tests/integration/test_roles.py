"""Database roles: each may do what its process does, nothing less and nothing more."""

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import asyncpg
import pytest

import gateway
from gateway.base.model import Retention
from gateway.ledger.connection import QUERIES, Connection
from gateway.ledger.deliveries import replay
from gateway.ledger.partitions import make_partitions, tend
from gateway.ledger.retention import Pruner
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.partitions import let_pass

ROLES_SQL: Final = (Path(__file__).parents[2] / "deploy" / "roles.sql").read_text(encoding="utf-8")
SERVE, WORKER, OPERATOR, READONLY = ROLES = (
    "gateway_serve",
    "gateway_worker",
    "gateway_operator",
    "gateway_readonly",
)
PAYLOADS: Final = {
    *(("payloads", "headers"), ("payloads", "body")),
    *(("events", "headers"), ("events", "body")),
}
"""What no one sees who takes events in, or only looks."""
DAY: Final = timedelta(days=1)
GENERIC: Final = "force_generic_plan"
UNREAD: Final = PAYLOADS | {
    *(("effects", "result"), ("effects", "sealed"), ("effects", "token")),
    ("attempts", "sealed"),
    *(("rejected", "headers"), ("rejected", "body")),
    *(("ended_sessions", "id"), ("ended_sessions", "until")),
}

SQL: Final = Path(gateway.__file__).parent


def statements_of(*files: str) -> set[str]:
    """The names of the statements in these files."""
    return {
        name
        for file in files
        for name in re.findall(r"^-- name: (\w+)$", (SQL / f"{file}.sql").read_text(), re.MULTILINE)
    }


LOOKING: Final = {
    *statements_of("operations/health/reading", "ledger/health"),
    *statements_of("ledger/statistics") - {"add_tallies"},
    *("list_dead", "count_causes", "group_dead", "has_dead_beyond", "list_all_audit"),
    *("list_alerts", "list_messages"),
    *("list_secret_uses", "list_reloads", "count_keys", "list_rejected", "group_rejected"),
    "count_items",
    *("list_pauses", "list_bulk", "find_bulk", "list_deliveries", "list_names"),
    *("list_reconciliations", "last_reconciliations", "list_gaps", "count_reasons", "find_job"),
}
"""Of `status`, `dead`, `audit`, `bulk`, `alerts` and their like."""
TELLING: Final = statements_of("ledger/alerts") - {"note_test"}
MEASURING: Final = statements_of("ledger/health") | {"list_pauses", "last_reconciliations"}
"""For /metrics."""
CLAIMING: Final = {"claim", "find_claims", "end_windows", "advance"}
RUN_BY: Final = {
    SERVE: CLAIMING
    | TELLING
    | MEASURING
    | statements_of("ledger/names")
    | {"find_job", "add_tallies", "note_refusals"}
    | {"lock_rejected", "keep_rejected", "measure_items", "trim_rejected", "compare_clocks"}
    | {"add_secret_uses", "keep_reload", "forget_reload", "make_partitions"},
    WORKER: CLAIMING
    | TELLING
    | MEASURING
    | statements_of("ledger/deliveries")
    - {"find_delivery", "replay", "count_effects_of", "discard"}
    | statements_of("ledger/ordering", "ledger/effects", "ledger/causes", "ledger/names")
    - {"list_effects", "count_causes"}
    | statements_of("ledger/reconciliations") - {"list_gaps", "list_reconciliations"}
    | {"forget_refusals"}
    | statements_of("ledger/retention") - {"count_prunable", "count_expired"}
    | statements_of("ledger/partitions") - {"describe_partitions"}
    | {"alive", "set_back", "leave", "publish", "add_tallies", "find_paused", "forget_rejected"},
    OPERATOR: CLAIMING
    | LOOKING
    | statements_of("operations/inspect", "operations/health/postgres", "operations/health/doctor")
    | statements_of("ledger/bulk", "ledger/pauses", "ledger/retention", "ledger/erasure")
    | {"read_limits", "find_delivery", "list_effects", "replay", "count_effects_of", "discard"}
    | statements_of("ledger/partitions")
    | statements_of("ledger/reconciliations") - {"forget_reconciliations", "last_scheduled"}
    | statements_of("ledger/rekeying")
    | {"end_session", "has_ended"}
    | statements_of("ledger/names") - {"lock_names", "keep_names"}
    | {"find_rejected", "next_rejected", "hold_rejected", "mark_released", "mark_repeated"}
    | {"lock_rejected", "keep_rejected", "measure_items"}
    | {"count_rejected_of", "erase_rejected", "add_tallies", "add_secret_uses"}
    | {"note_test", "take_turn", "forget_causes"},
    READONLY: LOOKING,
}
FUNCTIONS: Final = {
    SERVE: ("select from gateway.handlers",),
    WORKER: (
        "insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome)"
        " select 1, 1, now(), now(), 'done'",
        "update gateway.places set free_at = now()",
    ),
}
"""What functions do beyond what statements do, which a plan does not tell."""


@pytest.fixture
async def owner(database_url: str) -> AsyncIterator[Connection]:
    """The owner of a ledger with roles, in a transaction that is undone."""
    connection = await asyncpg.connect(database_url)
    for _ in range(2):  # it is to be run after every migration
        await connection.execute(ROLES_SQL)
    yield connection
    await connection.close()


async def refusals(owner: Connection, role: str, names: Iterable[str]) -> Iterator[str]:
    """Which of the statements the role may not run."""
    return iter([name for name in sorted(names) if not await may_run(owner, role, QUERIES[name])])


async def may_run(owner: Connection, role: str, sql: str) -> bool:
    """A plan is refused where its statement would be."""
    transaction = owner.transaction()
    await transaction.start()
    try:
        await owner.execute(f"set local role {role}; set local plan_cache_mode = {GENERIC}")
        # Planned for nulls themselves, a statement may not look into all of its tables.
        nulls = ", ".join("null" for _ in {*re.findall(r"\$\d+", sql)})
        await owner.execute(f"prepare asked as {sql}")
        await owner.execute(f"explain execute asked{f'({nulls})' if nulls else ''}")
    except asyncpg.InsufficientPrivilegeError:
        return False
    finally:
        await transaction.rollback()
        await owner.execute("deallocate asked")
    return True


def test_every_statement_is_run_by_somebody() -> None:
    """A new one is put above, under the roles of whoever runs it."""
    assert set().union(*RUN_BY.values()) == set(QUERIES)


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_run_what_its_process_runs(role: str, owner: Connection) -> None:
    assert list(await refusals(owner, role, RUN_BY[role])) == []


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_do_nothing_that_its_process_does_not(
    role: str, owner: Connection
) -> None:
    """Each privilege is taken away in turn, and something that it is there for is refused."""
    wanted = [QUERIES[name] for name in RUN_BY[role]] + list(FUNCTIONS.get(role, ()))
    idle = []
    for privilege, table in await privileges(owner, role):
        if privilege == "select" and role in (OPERATOR, READONLY):
            continue  # for people who ask what nobody has thought of
        transaction = owner.transaction()
        await transaction.start()
        await owner.execute(f"revoke {privilege} on gateway.{table} from {role}")
        about = [sql for sql in wanted if re.search(rf"gateway\.{table}\b|gateway\.\w+\(", sql)]
        if all([await may_run(owner, role, sql) for sql in about]):
            idle.append((privilege, table))
        await transaction.rollback()
    assert idle == []


async def privileges(owner: Connection, role: str) -> list[tuple[str, str]]:
    rows = await owner.fetch(
        "select lower(privilege_type) as privilege, table_name from information_schema"
        ".table_privileges where table_schema = 'gateway' and grantee = $1"
        " and table_name <> 'migrations' order by 2, 1",
        role,
    )
    return [(row["privilege"], row["table_name"]) for row in rows]


async def test_every_table_of_the_ledger_is_decided_on(owner: Connection) -> None:
    """A migration that adds one says in deploy/roles.sql who may do what with it."""
    tables = await owner.fetch(
        "select relname from pg_class c join pg_namespace n"
        " on n.oid = relnamespace where nspname = 'gateway' and relkind in ('r', 'p', 'v', 'm')"
        " and relname !~ '_[0-9]{8}$'"
    )
    undecided = [
        name
        for (name,) in tables
        if not re.search(rf"gateway\.{name}\b", re.sub("--.*", "", ROLES_SQL))
    ]
    assert undecided == [], "say in deploy/roles.sql who may do what with these tables"


async def test_every_column_of_what_has_payloads_is_decided_on(owner: Connection) -> None:
    """A new one is seen by nobody who only looks, until deploy/roles.sql says so, or this does."""
    rows = await owner.fetch(
        "select table_name, column_name from information_schema.columns c"
        " where table_schema = 'gateway' and not has_column_privilege($1,"
        " format('gateway.%I', table_name)::regclass, column_name::text, 'select')"
        " and table_name !~ '_([0-9]{8}|default)$'",  # which are read through what they are part of
        READONLY,
    )
    assert {tuple(row) for row in rows} == UNREAD


FORBIDDEN: Final = {
    SERVE: (
        "select body from gateway.payloads",
        "select headers from gateway.payloads",
        "select from gateway.payloads",
        "select body from gateway.events",
        "delete from gateway.payloads",
        "update gateway.retention set payload = '0'",
        "select gateway.detach_partition('payloads', current_date)",
        "select gateway.drop_partition('payloads', current_date)",
        "select * from gateway.payloads_default",
        "delete from gateway.processed_events where route = 'x'",
        "update gateway.processed_events set type = 'x'",
        "update gateway.deliveries set status = 'done'",
        "delete from gateway.deliveries where id = 1",
        "select name from gateway.effects",
        "select from gateway.audit",
        "insert into gateway.audit (actor, action) values ('a', 'b')",
        "select body from gateway.rejected",
        "update gateway.rejected set cause = 'x'",
    ),
    WORKER: (
        "update gateway.audit set actor = 'somebody else'",
        "insert into gateway.pauses (route, handler, actor) values ('a', 'b', 'c')",
        "update gateway.migrations set version = 1",
        "select headers from gateway.rejected",
    ),
    OPERATOR: (
        "delete from gateway.migrations",
        "insert into gateway.attempts select * from gateway.attempts",
    ),
    READONLY: (
        "select body from gateway.payloads",
        "select body is null from gateway.payloads",
        "select p from gateway.payloads p",
        "select body from gateway.events",
        "select body from gateway.payloads_default",
        "select gateway.make_partitions()",
        "select result from gateway.effects",
        "select sealed from gateway.attempts",
        "update gateway.deliveries set status = 'pending'",
    ),
}
FORBIDDEN_TO_ALL: Final = (
    "drop table gateway.deliveries",
    "truncate gateway.deliveries",
    "alter table gateway.deliveries disable trigger all",
    "create table gateway.mine (n int)",
    "create trigger t after insert on gateway.audit execute function x()",
    "create function gateway.mine() returns int return 1",
    "alter function gateway.settle_done owner to gateway_serve",
    *(f"set role {role}" for role in ROLES),
)


@pytest.mark.parametrize("role", ROLES)
async def test_what_a_role_must_not_do_is_refused(role: str, owner: Connection) -> None:
    await owner.execute(f"set session authorization {role}")
    allowed = []
    for statement in (*FORBIDDEN[role], *FORBIDDEN_TO_ALL):
        try:
            await owner.execute(statement)
        except asyncpg.InsufficientPrivilegeError:
            continue
        allowed.append(statement)
    assert allowed == [f"set role {role}"]


async def test_no_function_lends_anybody_its_owners_rights(owner: Connection) -> None:
    """Called by whom it may be, it can do what its caller may: then it matters to nobody who is
    allowed to call it, nor where its names are looked up. But for three, for which it does."""
    lending = await owner.fetch(
        "select proname, proconfig, has_function_privilege('gateway_readonly', oid, 'execute')"
        " from pg_proc where pronamespace = 'gateway'::regnamespace and prosecdef order by 1"
    )
    config = ["search_path=pg_catalog, pg_temp", "lock_timeout=200ms"]
    assert [tuple(row) for row in lending] == [
        ("detach_partition", config, False),
        ("drop_partition", config, False),
        ("make_partitions", config, False),
    ]


async def test_the_ledger_works_wherever_names_are_looked_up(owner: Connection) -> None:
    """All that functions name is named in full: tables of the same names mislead nobody."""
    await owner.execute(
        "create schema evil; create table evil.deliveries (id int);"
        " create table evil.handlers (id int); create table evil.places (id int);"
        " create function evil.turn_lock(text, text, text) returns bigint return 1 / 0;"
        " grant usage on schema evil to public; set search_path = evil;"
        f" set session authorization {WORKER}"
    )
    assert await owner.fetchval("select gateway.advance('r', 'h', 'k')") is None
    lease = "select gateway.lease_limited('r', 'h', 1, '1 s', 1, '1 s', 1, 1, false)"
    assert await owner.fetch(lease) == []


async def test_a_worker_forgets_days_whose_tables_are_not_its_own(
    owner: Connection, database_url: str, ledger: Reader
) -> None:
    """What a function does is refused only when it is run."""
    kept = {"stripe": Retention(key=35 * DAY, payload=14 * DAY, dead=90 * DAY)}
    claims = [make_claim(f"evt_{n}") for n in range(3)]
    ids = [id for answer in await claim_all(database_url, claims) for id in answer.delivery_ids]
    await owner.execute(
        "update gateway.deliveries set status = case id when $1 then 'pending' else 'done' end,"
        " finished_at = case id when $1 then null else now() end",
        ids[0],
    )
    await let_pass(ledger, 16)
    await make_partitions(owner)  # a replay files the payload in one of them
    await owner.execute(f"set role {OPERATOR}")
    await replay(owner, ids[1], actor="ann", reason=None)
    await owner.execute(f"set role {WORKER}")
    tended = await tend(owner, kept)
    assert (tended.refiled, tended.dropped > 0, tended.waiting) == (1, True, 0)
    await Pruner(kept).step(owner)
    await owner.execute("reset role")
    left = await owner.fetch("select event_id from gateway.payloads order by 1")
    assert [row["event_id"] for row in left] == ["evt_0", "evt_1"]
