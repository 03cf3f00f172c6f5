"""Whatever a handler's SQL sets in its session is undone before the next delivery, or refused."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from gateway import Context, Event
from gateway.config.registry.key_path import KeyPath
from gateway.dev.embedded import Postgres
from gateway.ledger.sessions import Sessions
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.pgbouncer import PgBouncer, pgbouncer
from tests.support.waiting import until
from tests.support.workers import count, subscribe, working

LIMIT = timedelta(minutes=5)

SHOWN = {
    "work_mem": "'1MB'",
    "search_path": "nowhere",
    "client_encoding": "'LATIN1'",
    "session_replication_role": "replica",
    "plan_cache_mode": "force_custom_plan",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "'77s'",
    "lock_timeout": "'77s'",
    "datestyle": "'SQL, DMY'",
    "intervalstyle": "iso_8601",
    "timezone": "'Asia/Kathmandu'",
    "standard_conforming_strings": "off",
    "bytea_output": "escape",
    "row_security": "off",
    "synchronous_commit": "off",
    "enable_indexscan": "off",
    "jit": "off",
    "role": "a_role_of_the_test",
}
CHANGES: dict[str, tuple[str, str]] = {
    f"set {name}": (f"set {name} = {value}", f"select current_setting('{name}')")
    for name, value in SHOWN.items()
} | {
    "set_config": (
        "select set_config('work_mem', '1MB', false)",
        "select current_setting('work_mem')",
    ),
    "a setting of an application": (
        "select set_config('app.tenant', '7', false)",
        "select coalesce(current_setting('app.tenant', true), '')",
    ),
    "set application_name": (  # a pooler does not set it again, which does no harm
        "set application_name = 'someone else'",
        "select current_setting('application_name') = 'someone else'",
    ),
    "set local": ("set local work_mem = '1MB'", "select current_setting('work_mem')"),
    "set session authorization": (
        "set session authorization a_role_of_the_test",
        "select session_user || ' ' || current_user",
    ),
    "set transaction": (
        "set transaction isolation level serializable, deferrable",
        "select current_setting('transaction_isolation')"
        " || current_setting('transaction_deferrable')",
    ),
    "set session characteristics": (
        "set session characteristics as transaction isolation level serializable, read only",
        "select current_setting('transaction_isolation')"
        " || current_setting('transaction_read_only')",
    ),
    "set constraints": ("set constraints all deferred", "select 1"),
    "prepare": (
        "prepare of_the_test as select 1",
        "select count(*) from pg_prepared_statements where from_sql",
    ),
    "prepare with an odd name": (
        'prepare "odd ""name" as select 1',
        "select count(*) from pg_prepared_statements where from_sql",
    ),
    "a cursor with hold": (
        "declare of_the_test cursor with hold for select 1",
        "select count(*) from pg_cursors where name = 'of_the_test'",
    ),
    "listen": ("listen of_the_test", "select count(*) from pg_listening_channels()"),
    "a temporary table": (
        "create temp table effects (id int)",
        "select to_regclass('effects')::oid",
    ),
    "a temporary view": (
        "create temp view effects as select 1",
        "select to_regclass('effects')::oid",
    ),
    "a temporary sequence": (
        "create temp sequence a_sequence; select nextval('a_sequence')",
        "select to_regclass('a_sequence')::oid",
    ),
    "a temporary type": (
        "create type pg_temp.effects as enum ('a')",
        "select to_regtype('effects')::oid",
    ),
    "a temporary function": (
        "create function pg_temp.f() returns int language sql return 1",
        "select count(*) from pg_proc where pronamespace = pg_my_temp_schema()",
    ),
    "an advisory lock": (
        "select pg_advisory_lock(7), pg_advisory_lock_shared(8)",
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()",
    ),
    "the last value of a sequence": (
        "select nextval('public.a_sequence')",
        "select public.last_of_a_sequence()",
    ),
    "a large object's descriptor": ("select lo_open(lo_create(0), 131072)", "select 1"),
    "a savepoint": ("savepoint of_the_test", "select 1"),
    "a cursor": (
        "declare of_the_test cursor for select 1",
        "select count(*) from pg_cursors where name = 'of_the_test'",
    ),
    "an advisory lock of the transaction": (
        "select pg_advisory_xact_lock(7)",
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()",
    ),
    "the proof of a transaction": (
        "select set_config('gateway.transaction', 'made up', false)",
        "select current_setting('gateway.transaction') = 'made up'",
    ),
}  # fmt: skip
TEXT_ONLY = {"set transaction", "a savepoint"}
"""Postgres refuses these in a function."""
CASES = [(change, "text") for change in CHANGES]
CASES += [(change, "function") for change in CHANGES if change not in TEXT_ONLY]
SET_UP = """
create sequence public.a_sequence;
create function public.last_of_a_sequence() returns text language plpgsql as $$
begin
    return currval('public.a_sequence');
exception when object_not_in_prerequisite_state then
    return 'none';
end $$;
"""


@pytest.fixture(scope="module")
def bouncer(engine_dir: Path, postgres: Postgres) -> Iterator[PgBouncer]:
    with pgbouncer(engine_dir / "pgbouncer", postgres.url, default_pool_size="1") as bouncer:
        yield bouncer


@pytest.fixture(params=["direct", "pooler"])
async def sessions(request: pytest.FixtureRequest, direct_url: str) -> AsyncIterator[Sessions]:
    """Sessions for handlers: straight to the server, or through a pooler that has one server."""
    url = direct_url
    if request.param == "pooler":
        bouncer: PgBouncer = request.getfixturevalue("bouncer")
        url = bouncer.url(urlsplit(direct_url).path.lstrip("/"))
    sessions = Sessions(url, name="sessions under test")
    yield sessions
    await sessions.close()


@pytest.fixture
async def a_role(ledger: Reader) -> AsyncIterator[None]:
    """A role without any rights."""
    await ledger.run("drop role if exists a_role_of_the_test; create role a_role_of_the_test")
    yield
    await ledger.run("drop role a_role_of_the_test")


@pytest.mark.usefixtures("a_role")
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize(("change", "way"), CASES)
async def test_what_a_handler_set_is_undone(
    change: str, way: str, end: str, sessions: Sessions, ledger: Reader
) -> None:
    sql, probe = CHANGES[change]
    if way == "function":
        await ledger.run(
            "create function public.change() returns void language plpgsql"
            f" as $f$ begin execute $q${sql}$q$; end $f$"
        )
        sql = "select public.change()"
    await ledger.run(SET_UP)
    session = await sessions.take()

    async def look() -> tuple[Any, Any]:
        await session.begin(LIMIT)
        seen = await session.connection.fetchval(probe)
        pid = await session.connection.fetchval("select pg_backend_pid()")
        await session.commit("select 1", chain=False)
        return seen, pid

    before = await look()
    await session.begin(LIMIT)
    session.is_foreign = True
    await session.connection.execute(sql)
    await (session.roll_back() if end == "rollback" else session.commit("select 1", chain=True))
    assert not session.connection.is_in_transaction()
    assert await look() == before


async def test_the_seed_of_random_is_not_what_a_handler_set(sessions: Sessions) -> None:
    session = await sessions.take()
    seen = []
    for _ in range(2):
        await session.begin(LIMIT)
        session.is_foreign = True
        seen.append(await session.connection.fetchval("select random()"))
        await session.connection.fetchval("select setseed(0.5)")
        await session.commit("select 1", chain=False)
    await session.begin(LIMIT)
    await session.connection.fetchval("select setseed(0.5)")
    assert await session.connection.fetchval("select random()") not in seen


async def test_what_the_driver_has_prepared_is_kept(sessions: Sessions) -> None:
    """Planning the gateway's statements anew for each delivery would cost as much as running it."""
    session = await sessions.take()
    counts = []
    for _ in range(3):
        await session.begin(LIMIT)
        session.is_foreign = True
        await session.connection.fetchval("select $1::int + 1", 1)
        counts.append(
            await session.connection.fetchval(
                "select count(*) from pg_prepared_statements where statement like 'select $1::int%'"
            )
        )
        await session.commit("select 1", chain=False)
    assert len(set(counts)) == 1  # none, if a pooler keeps none


async def is_settled(ledger: Reader) -> bool:
    return set(await ledger.statuses()) <= {"done", "dead"}


@pytest.mark.parametrize(
    "sql", ["deallocate all", "DEALLOCATE PREPARE ALL", "reset all", "select 1; RESET ALL"]
)
async def test_what_the_gateway_itself_needs_cannot_be_reset(
    sql: str, database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await ctx.db.execute(sql)

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler)):
        await until(lambda: is_settled(ledger))
    delivery = await ledger.delivery()
    assert (delivery["status"], await ledger.outcomes()) == ("dead", ["dead"])
    assert "was not sent" in delivery["error"]


@pytest.mark.parametrize(
    "sql",
    [
        "copy effects from stdin",
        "COPY effects (event_id, handler) FROM STDIN WITH (FORMAT csv)",
        "select 1; copy (select 1) to stdout",
    ],
)
async def test_a_session_is_not_left_waiting_for_the_data_of_a_copy(
    sql: str, database_url: str, ledger: Reader
) -> None:
    """The driver sends none and takes none: the call would never return, nor be cancelled."""

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await ctx.db.execute(sql)

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler)):
        await until(lambda: is_settled(ledger))
    delivery = await ledger.delivery()
    assert (delivery["status"], await ledger.outcomes()) == ("dead", ["dead"])
    assert "was not sent" in delivery["error"]
    assert "executemany" in delivery["error"]


@pytest.mark.parametrize(
    "sql",
    [
        "set transaction read only",
        "set local transaction_read_only = on",
        "select set_config('transaction_read_only', 'on', true)",
    ],
)
async def test_a_read_only_transaction_is_reported_as_what_it_is(
    sql: str, database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        if event.id == "evt_1":
            await ctx.db.execute(sql)
        else:
            await count(event, ctx)

    await claim_all(database_url, [make_claim("evt_1"), make_claim("evt_2")])
    async with working(database_url, subscribe(handler), concurrency=1):
        await until(lambda: is_settled(ledger))
    first, second = await ledger.rows("select * from gateway.deliveries order by event_id")
    assert (first["status"], first["attempts"]) == ("dead", 3)
    assert "has made its transaction read only" in first["error"]
    assert "went away" not in first["error"]
    assert second["status"] == "done"


@pytest.mark.usefixtures("a_role")
@pytest.mark.parametrize(
    "sql",
    [
        "set role a_role_of_the_test",
        "set local role a_role_of_the_test",
        "set session authorization a_role_of_the_test",
        "set search_path = nowhere",
        "set local search_path = ''",
        "set session characteristics as transaction read only",
        "set default_transaction_isolation = serializable",
        "set session_replication_role = replica",
        "set client_encoding = 'LATIN1'",
        "set constraints all immediate",
    ],
)
async def test_a_handler_that_changes_its_session_completes(
    sql: str, database_url: str, ledger: Reader
) -> None:
    """The settlement runs as the gateway, however the handler left its session."""

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await ctx.db.execute(sql)

    await claim_all(database_url, [make_claim(f"evt_{n}") for n in range(3)])
    async with working(database_url, subscribe(handler), concurrency=1):
        await until(lambda: is_settled(ledger))
    assert await ledger.outcomes() == ["done"] * 3
    assert await ledger.effects() == 3


@pytest.fixture
async def url_of_a_login(direct_url: str, ledger: Reader) -> AsyncIterator[str]:
    """The URL of a role without any rights, whose sessions begin as another role."""
    await ledger.run(
        "drop role if exists a_login_of_the_test;"
        "create role a_login_of_the_test login noinherit;"
        "grant gateway to a_login_of_the_test;"
        "alter role a_login_of_the_test set role = gateway"
    )
    parts = urlsplit(direct_url)
    host = parts.netloc.rpartition("@")[2]
    yield urlunsplit(parts._replace(netloc=f"a_login_of_the_test@{host}"))
    await ledger.run("drop role a_login_of_the_test")


@pytest.mark.parametrize("sql", ["select 1", "set role none", "reset session authorization"])
async def test_a_session_gets_back_the_role_that_it_began_with(
    sql: str, url_of_a_login: str, direct_url: str, ledger: Reader
) -> None:
    """`alter role ... set role` gives it one, and a reset of the authorization takes it away."""
    users: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        users.append(await ctx.db.fetchval("select current_user"))
        await count(event, ctx)
        if event.id == "evt_1":
            await ctx.db.execute(sql)

    await claim_all(direct_url, [make_claim("evt_1"), make_claim("evt_2")])
    subscription = subscribe(handler, once_per=KeyPath.parse("id"))
    async with working(url_of_a_login, subscription, concurrency=1):
        await until(lambda: is_settled(ledger))
    assert await ledger.outcomes() == ["done", "done"]
    assert users == ["gateway", "gateway"]


@pytest.mark.usefixtures("a_role")
async def test_a_handler_that_acts_once_per_key_may_take_a_role(
    database_url: str, ledger: Reader
) -> None:
    """That it has acted is written in its transaction, by the gateway."""

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await ctx.db.execute("set role a_role_of_the_test")

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler, once_per=KeyPath.parse("id"))):
        await until(lambda: is_settled(ledger))
    assert await ledger.outcomes() == ["done"], (await ledger.delivery())["error"]


async def test_a_statement_whose_columns_have_changed_burns_no_attempt(
    database_url: str, ledger: Reader
) -> None:
    """The driver prepares a statement once per session, also one on a temporary table."""

    async def handler(event: Event, ctx: Context) -> None:
        kind = "int" if event.id == "evt_1" else "text"
        await ctx.db.execute(f"create temp table of_the_run (value {kind})")
        await ctx.db.fetch("select * from of_the_run")
        await count(event, ctx)

    await claim_all(database_url, [make_claim("evt_1"), make_claim("evt_2")])
    async with working(database_url, subscribe(handler), concurrency=1):
        await until(lambda: is_settled(ledger))
    assert await ledger.value("select array_agg(attempts) from gateway.deliveries") == [1, 1]
    assert await ledger.statuses() == {"done": 2}
    assert await ledger.effects() == 2


async def test_a_session_whose_prepared_statements_were_dropped_is_not_used_again(
    database_url: str, ledger: Reader
) -> None:
    """A function can drop those of the driver, which the gateway cannot see."""

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        if event.id == "evt_0" and ctx.attempt == 1:
            await ctx.db.execute("do $$ begin execute 'deallocate all'; end $$")

    await claim_all(database_url, [make_claim(f"evt_{n}") for n in range(5)])
    async with working(database_url, subscribe(handler), concurrency=1):
        await until(lambda: is_settled(ledger))
    assert await ledger.statuses() == {"done": 5}
    assert await ledger.effects() == 5
    # The delivery that got the session next did not drop them.
    assert await ledger.value("select array_agg(distinct attempts) from gateway.deliveries") == [1]


async def test_a_composite_type_that_has_changed_burns_no_attempt(
    database_url: str, ledger: Reader
) -> None:
    """The driver reads the attributes of a type once per session."""

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        values = "1, 2" if event.id == "evt_1" else "1, 2, 3"
        await ctx.db.fetchval(f"select row({values})::public.pair")

    await ledger.run("create type public.pair as (a int, b int)")
    async with working(database_url, subscribe(handler), concurrency=1):
        await claim_all(database_url, [make_claim("evt_1")])
        await until(lambda: is_settled(ledger))
        await ledger.run("alter type public.pair add attribute c int")
        await claim_all(database_url, [make_claim("evt_2")])
        await until(lambda: is_settled(ledger))
    assert await ledger.outcomes() == ["done", "lost", "done"]
    assert await ledger.effects() == 2


async def test_a_statement_that_a_handler_has_not_prepared_is_its_own_error(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await ctx.db.execute("execute never_prepared")

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler)):
        await until(lambda: is_settled(ledger))
    assert await ledger.outcomes() == ["retry", "retry", "dead"]
