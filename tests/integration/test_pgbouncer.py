"""Through a real PgBouncer in transaction mode: a session is ours for one transaction."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from gateway import Context, Event, Retry
from gateway.base.errors import CommandFailed
from gateway.dev.embedded import Postgres
from gateway.ledger.connection import Connection, Opener, connect, make_durable, open_pool
from gateway.ledger.migrate import SchemaFile, migrate, read_migrations
from gateway.ledger.reconciliations import reconciling
from gateway.ledger.servers import is_pooled
from gateway.ledger.sessions import Sessions
from gateway.receive.metrics import Metrics
from tests.support.ledger import Reader, claim_all, claiming, make_claim
from tests.support.pgbouncer import PgBouncer, pgbouncer
from tests.support.scraping import Scraped
from tests.support.waiting import until
from tests.support.workers import QUICK, count, subscribe, working

FEW: int = 3
"""Servers of the pool: fewer than clients, so that each transaction gets another one."""

ONE_ATTEMPT = replace(QUICK, attempts=1)


@pytest.fixture(scope="module")
def bouncer(engine_dir: Path, postgres: Postgres) -> Iterator[PgBouncer]:
    with pgbouncer(engine_dir / "pgbouncer", postgres.url, default_pool_size=str(FEW)) as bouncer:
        yield bouncer


@pytest.fixture
def pooled_url(bouncer: PgBouncer, direct_url: str) -> str:
    """This test's database, through the pooler."""
    return bouncer.url(urlsplit(direct_url).path.lstrip("/"))


async def is_settled(ledger: Reader) -> bool:
    return set(await ledger.statuses()) <= {"done", "dead"}


async def is_done(ledger: Reader, deliveries: int) -> bool:
    return await ledger.statuses() == {"done": deliveries}


async def may_reconcile(connection: Connection, route: str) -> bool:
    try:
        async with reconciling(connection, route):
            return True
    except CommandFailed:
        return False


async def test_a_pooler_is_found_out_and_a_server_is_not_taken_for_one(
    pooled_url: str, direct_url: str
) -> None:
    for url, pooled in ((pooled_url, True), (direct_url, False)):
        for connection in (await connect(url, name="a"), await connect(url, name="b", jit="off")):
            assert is_pooled(connection) is pooled
            assert await connection.fetchval("select 1") == 1
            await connection.close()


async def test_a_pooler_that_swallows_settings_is_found_out_too(
    engine_dir: Path, postgres: Postgres
) -> None:
    ignored = "plan_cache_mode,enable_seqscan,jit,search_path,default_transaction_isolation"
    with pgbouncer(
        engine_dir / "lenient", postgres.url, ignore_startup_parameters=ignored
    ) as lenient:
        connection = await connect(lenient.url(), name="test", search_path="gateway", jit="off")
        assert is_pooled(connection)
        assert await connection.fetchval("select current_setting('jit')") == "off"
        assert await connection.fetchval("select current_setting('search_path')") == "gateway"
        await connection.close()


async def test_a_url_can_say_that_there_is_a_pooler(direct_url: str) -> None:
    for mark in ("pooler=transaction", "pgbouncer=true"):
        connection = await connect(f"{direct_url}&{mark}", name="test", jit="off")
        assert is_pooled(connection)
        assert await connection.fetchval("select current_setting('jit')") == "off"
        await connection.close()


async def test_every_statement_is_told_the_settings_and_leaves_none(pooled_url: str) -> None:
    """By as many clients as make the pool hand its servers round."""
    settings = {"search_path": '"odd \'name", public', "lock_timeout": "7s"}
    pool = await open_pool(pooled_url, name="told", size=8, command_timeout_s=20, **settings)
    plain = await open_pool(pooled_url, name="plain", size=8, command_timeout_s=20)
    read = "select current_setting('lock_timeout') || current_setting('search_path') || $1::text"

    async def ask(n: int) -> tuple[str, str]:
        return await pool.fetchval(read, "!"), await plain.fetchval(read, "!")

    answers = set(await asyncio.gather(*(ask(n) for n in range(100))))
    assert answers == {('7s"odd \'name", public!', '0"$user", public!')}
    pool.terminate()
    plain.terminate()


async def test_a_transaction_is_told_the_settings_too(pooled_url: str) -> None:
    connection = await connect(pooled_url, name="test", lock_timeout="7s")
    async with connection.transaction():
        assert await connection.fetchval("show lock_timeout") == "7s"
        async with connection.transaction():
            assert await connection.fetchval("show lock_timeout") == "7s"
    async with connection.transaction(isolation="serializable", readonly=True):
        assert await connection.fetchval("show lock_timeout") == "7s"
        assert await connection.fetchval("show transaction_isolation") == "serializable"
    await connection.close()


async def test_a_commit_says_of_what_it_is(pooled_url: str, ledger: Reader) -> None:
    """A pause waits for leases that are under way, and knows them by their first line: also while
    they commit."""
    connection = await connect(pooled_url, name="leasing", lock_timeout="7s")
    await connection.fetchval("-- lease_something\nselect $1::int", 1)
    last = "select query from pg_stat_activity where application_name = 'leasing'"
    assert await ledger.value(last) == "-- lease_something\ncommit"
    await connection.close()


async def test_a_statement_that_fails_leaves_no_transaction_open(pooled_url: str) -> None:
    connection = await connect(pooled_url, name="test", lock_timeout="7s")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await connection.fetchval("select 1 / $1::int", 0)
    assert not connection.is_in_transaction()
    with pytest.raises(asyncpg.DataError):
        await connection.fetchval("select 1 / $1::int", "no number")
    assert not connection.is_in_transaction()
    assert await connection.fetchval("select 1 / $1::int", 1) == 1
    with pytest.raises(TimeoutError):
        await connection.fetchval("select pg_sleep($1)", 30, timeout=0.1)
    assert connection.is_closed()
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await connection.execute("rollback")
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await connection.fetchval("select 1")


async def test_an_event_is_claimed_once_however_often_it_comes(
    pooled_url: str, ledger: Reader
) -> None:
    claims = [make_claim(f"evt_{n % 100}", handlers=("a", "b")) for n in range(400)]
    async with claiming(pooled_url) as one, claiming(pooled_url) as two:
        answers = await asyncio.gather(
            *((one, two)[n % 2].claim(claim) for n, claim in enumerate(claims))
        )
    assert sum(a.verdict == "accepted" for a in answers) == 100
    assert await ledger.value("select count(*) from gateway.deliveries") == 200


async def test_a_claim_waits_for_the_disk_where_the_database_would_not(
    pooled_url: str, ledger: Reader
) -> None:
    name = await ledger.value("select current_database()")
    await ledger.run(f'alter database "{name}" set synchronous_commit = off')
    connection = await connect(pooled_url, name="test", jit="off")
    await make_durable(connection)
    assert await connection.fetchval("show synchronous_commit") == "on"
    assert await connection.fetchval("show jit") == "off"
    await connection.close()


async def test_work_is_done_once(pooled_url: str, ledger: Reader) -> None:
    await claim_all(pooled_url, [make_claim(f"evt_{n}") for n in range(100)])
    async with working(pooled_url, subscribe(count)), working(pooled_url, subscribe(count)):
        await until(partial(is_done, ledger, 100))
    assert await ledger.effects() == 100
    assert await ledger.value("select count(distinct event_id) from public.effects") == 100


async def test_what_a_handler_sets_reaches_no_other_client(pooled_url: str, ledger: Reader) -> None:
    async def spoil(event: Event, ctx: Context) -> None:
        await ctx.db.execute("set work_mem = '99MB'; set search_path = gateway")
        await ctx.db.execute("select pg_advisory_lock(7); listen x")
        await ctx.db.execute("create temp table effects (id int)")
        await ctx.db.execute("set session_replication_role = replica")
        if event.id.endswith("3"):
            raise RuntimeError("after all that")

    await claim_all(pooled_url, [make_claim(f"evt_{n}") for n in range(20)])
    async with working(pooled_url, subscribe(spoil, retry=ONE_ATTEMPT)):
        await until(partial(is_settled, ledger))
    pool = await open_pool(pooled_url, name="other", size=2 * FEW, command_timeout_s=20)
    read = (
        "select concat_ws(' ', current_setting('work_mem'), current_setting('search_path'),"
        " current_setting('session_replication_role'), to_regclass('pg_temp.effects'))"
        " from pg_sleep(0.01)"
    )
    found = await asyncio.gather(*(pool.fetchval(read) for _ in range(30)))
    assert set(found) == {'4MB "$user", public origin'}
    assert await ledger.value("select count(*) from pg_locks where locktype = 'advisory'") == 0
    pool.terminate()


async def test_the_transaction_of_a_stopped_worker_is_ended_and_its_work_done_by_another(
    pooled_url: str, ledger: Reader
) -> None:
    """The zombie's connection stays open, as that of a machine that was suspended."""
    sessions = Sessions(pooled_url, name="zombie", search_path="public")
    zombie = await sessions.take()
    await zombie.begin(timedelta(milliseconds=300))
    await zombie.connection.execute("insert into orders values ('o', 'by the zombie')")

    async def write(event: Event, ctx: Context) -> None:
        await ctx.upsert("orders", key={"id": "o"}, values={"status": "done"})

    await claim_all(pooled_url, [make_claim()])
    async with working(pooled_url, subscribe(write)):
        await until(partial(is_done, ledger, 1))
    assert await ledger.value("select status from orders") == "done"
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await zombie.commit("select 1", chain=False)
    await sessions.close()


async def test_a_worker_that_lost_its_lease_commits_nothing(
    pooled_url: str, ledger: Reader
) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        if ctx.attempt == 1 and not started.is_set():
            started.set()
            await go_on.wait()

    await claim_all(pooled_url, [make_claim()])
    async with working(pooled_url, subscribe(slow)):
        await started.wait()
        await ledger.run("update gateway.deliveries set lease_token = gen_random_uuid()")
        go_on.set()
        await until(partial(is_done, ledger, 1))
    assert await ledger.effects() == 1


async def test_an_effect_is_called_once_through_a_lost_pooler(
    engine_dir: Path, postgres: Postgres, database_url: str, ledger: Reader
) -> None:
    calls: list[str] = []
    called, restarted = asyncio.Event(), asyncio.Event()
    with pgbouncer(engine_dir / "dying", postgres.url) as dying:
        url = dying.url(urlsplit(database_url).path.lstrip("/"))

        async def send(event: Event, ctx: Context) -> None:
            await count(event, ctx)
            await ctx.once("mail", lambda: calls.append(event.id))
            called.set()
            await restarted.wait()

        await claim_all(url, [make_claim()])
        async with working(url, subscribe(send)):
            await called.wait()
            await asyncio.to_thread(dying.kill)
            dying.start()
            restarted.set()
            await until(partial(is_done, ledger, 1))
    assert len(calls) == 1
    assert await ledger.effects() == 1
    assert "retry" not in await ledger.outcomes(), "a lost pooler burns no attempt"


async def test_one_server_more_than_handlers_may_hold_is_enough(
    pooled_url: str, ledger: Reader
) -> None:
    """Where they may hold them all, `ctx.once` waits for a server, and they wait for it."""
    calls: list[str] = []

    async def send(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await ctx.once("mail", lambda: calls.append(event.id))

    await claim_all(pooled_url, [make_claim() for _ in range(30)])
    async with working(pooled_url, subscribe(send), concurrency=16, handler_connections=FEW - 1):
        await until(partial(is_done, ledger, 30))
    assert len(calls) == len(set(calls)) == 30
    assert set(await ledger.outcomes()) == {"done"}


async def test_second_runs_may_hold_every_server_of_a_pooler(
    pooled_url: str, ledger: Reader
) -> None:
    """The effects of earlier runs are marked in the transaction of the run, on no other server."""
    inside = asyncio.Barrier(FEW)

    async def fail_first(event: Event, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Retry("once more", after=0)
        await count(event, ctx)
        await inside.wait()

    await claim_all(pooled_url, [make_claim(f"evt_{n}") for n in range(FEW)])
    async with working(pooled_url, subscribe(fail_first)):
        await until(partial(is_done, ledger, FEW))
    assert await ledger.effects() == FEW
    assert set(await ledger.outcomes()) == {"retry", "done"}


async def test_a_pooler_that_is_restarted_under_load_loses_nothing_and_repeats_nothing(
    engine_dir: Path, postgres: Postgres, database_url: str, ledger: Reader
) -> None:
    with pgbouncer(engine_dir / "restarted", postgres.url, default_pool_size=str(FEW)) as restarted:
        url = restarted.url(urlsplit(database_url).path.lstrip("/"))
        async with claiming(url) as claimer, working(url, subscribe(count)):
            claims: list[asyncio.Task[object]] = []
            for n, end in enumerate((restarted.stop, restarted.kill, restarted.stop)):
                claims += [
                    asyncio.create_task(claimer.claim(make_claim(f"evt_{n}_{m}")))
                    for m in range(100)
                ]
                await until(ledger.effects)
                await asyncio.to_thread(end)
                restarted.start()
            await asyncio.gather(*claims)
            await until(partial(is_done, ledger, 300))
    assert await ledger.effects() == 300
    assert await ledger.value("select count(distinct event_id) from public.effects") == 300


async def test_ten_that_migrate_at_once_apply_each_migration_once(
    bouncer: PgBouncer, empty_database_url: str
) -> None:
    url = bouncer.url(urlsplit(empty_database_url).path.lstrip("/"))
    dumped = SchemaFile(
        path=Path("schema.sql"),
        sql="set check_function_bodies = false; select set_config('search_path', '', false);"
        "create table if not exists public.mine (id int);",
    )

    async def migrate_once() -> tuple[str, ...]:
        connection = await connect(url, name="gateway migrate")
        try:
            return await migrate(connection, [dumped])
        finally:
            await connection.close()

    applied = await asyncio.gather(*(migrate_once() for _ in range(10)))
    names = [migration.name for migration in read_migrations()]
    assert sorted(name for names in applied for name in names) == names
    pool = await open_pool(url, name="after", size=2 * FEW, command_timeout_s=20)
    read = "select current_setting('search_path') from pg_sleep(0.01)"
    assert set(await asyncio.gather(*(pool.fetchval(read) for _ in range(20)))) == {
        '"$user", public'
    }
    pool.terminate()


async def test_a_route_is_reconciled_by_one_at_a_time(pooled_url: str) -> None:
    first = await connect(pooled_url, name="one")
    second = await connect(pooled_url, name="two")
    async with reconciling(first, "stripe"):
        assert not await may_reconcile(second, "stripe")
        assert await may_reconcile(second, "github")
    assert await may_reconcile(second, "stripe")
    holding = reconciling(first, "stripe")
    await holding.__aenter__()
    first.terminate()  # as its process would
    await until(partial(may_reconcile, second, "stripe"))
    await second.close()


async def test_statements_are_kept_where_the_pooler_knows_them(bouncer: PgBouncer) -> None:
    """PgBouncer 1.21 and later, max_prepared_statements: each server prepares what it is asked."""
    opener = Opener(bouncer.url(), name="keeping", jit="off")
    connections = [await opener.open() for _ in range(2 * FEW)]
    asked = "select $1::int + 1 from pg_sleep(0.001)"
    for _ in range(20):
        answers = await asyncio.gather(*(c.fetchval(asked, 1) for c in connections))
        assert set(answers) == {2}
    for connection in connections:
        await connection.close()


async def test_metrics_are_read_through_it_and_leave_nothing_behind(pooled_url: str) -> None:
    await claim_all(pooled_url, [make_claim()])
    metrics = Metrics()
    metrics.watch_ledger(pooled_url, lately=timedelta(seconds=30))
    told = Scraped((await metrics.show()).decode())
    assert told.values("gateway_ledger_up") == [1]
    assert told.values("gateway_backlog_deliveries", state="due") == [1]
    connection = await connect(pooled_url, name="next")
    for _ in range(FEW):
        assert await connection.fetchval("select current_setting('enable_bitmapscan')") == "on"
    await connection.close()
