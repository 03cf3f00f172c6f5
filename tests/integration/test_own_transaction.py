"""A handler that ends its own transaction: its delivery is dead at once, and not run again."""

from typing import Any

import asyncpg
import pytest

from gateway import Context, Event, Reject
from gateway.config.registry.key_path import KeyPath
from gateway.worker.context import transaction_of
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import Function, count, subscribe, working

ENDINGS = [
    "commit",
    "COMMIT WORK",
    "end",
    "abort",
    "rollback",
    "rollback and chain",
    "commit and chain",
    "prepare transaction 'p1'",
    " \n-- a comment\n/* and /* another */ one */ commit",
    "commit; begin",
    "select 'it''s'; commit; begin; select 2",
    "select $tag$ $$ ; $tag$; commit; begin; select 1/0",
]
PROOF = "select current_setting('gateway.transaction', true) as proof"


async def run_one(url: str, ledger: Reader, handler: Function, **flow: Any) -> dict[str, Any]:
    """Run the handler for one event until its delivery is settled for good."""
    await claim_all(url, [make_claim("evt_1")])
    async with working(url, subscribe(handler, **flow)):
        await until(lambda: is_settled(ledger))
    return await ledger.delivery()


async def is_settled(ledger: Reader) -> bool:
    return set(await ledger.statuses()) <= {"done", "dead"}


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway does not recognise the statement, as if its text were hidden from it."""
    monkeypatch.setattr("gateway.worker.transaction.check_statement", lambda query, **_: None)


@pytest.mark.parametrize("catches", [False, True], ids=["raises", "returns"])
@pytest.mark.parametrize("sql", ENDINGS)
async def test_a_statement_that_ends_the_transaction_is_refused(
    sql: str, catches: bool, database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        try:
            await ctx.db.execute(sql)
        except Exception:
            if not catches:
                raise

    delivery = await run_one(database_url, ledger, handler)
    if catches:  # nothing was sent: the transaction is still the one of the delivery
        assert (delivery["status"], await ledger.effects()) == ("done", 1)
    else:
        assert (delivery["status"], await ledger.effects()) == ("dead", 0)
        assert await ledger.outcomes() == ["dead"]
        assert delivery["error"].startswith("StatementRefused: ")
        assert "ctx.db.transaction()" in delivery["error"]


@pytest.mark.parametrize("setting", ["on", "off"])
async def test_a_commit_behind_an_escaped_quote_is_refused_as_the_session_reads_it(
    setting: str, database_url: str, ledger: Reader
) -> None:
    """A text whose only COMMIT is inside of a constant runs; the other one is refused."""
    done: list[str] = []
    texts = {"on": r"select '\'; commit; select ''", "off": r"select '\''; commit; --'"}
    hidden = {"on": r"select e'\'; commit; '", "off": r"select '\'; commit; '"}

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await ctx.db.execute(f"set standard_conforming_strings = {setting}")
        done.append(await ctx.db.execute(hidden[setting]))
        await ctx.db.execute(texts[setting])

    delivery = await run_one(database_url, ledger, handler)
    assert delivery["status"] == "dead"
    assert done == ["SELECT 1"]
    assert delivery["error"].startswith("StatementRefused: `COMMIT`")
    assert await ledger.effects() == 0


@pytest.mark.parametrize("method", ["fetch", "fetchrow", "fetchval", "executemany"])
async def test_no_method_of_ctx_db_ends_the_transaction(
    method: str, database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await getattr(ctx.db, method)("commit and chain", *([[()]] * (method == "executemany")))

    await run_one(database_url, ledger, handler)
    assert await ledger.outcomes() == ["dead"]
    assert await ledger.effects() == 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize(
    "sql",
    [
        "commit",
        "commit and chain",
        "commit; begin",
        "rollback",
        "rollback and chain",
        "rollback; begin",
        "end; begin; set local gateway.transaction = 'made up'",
    ],
)
async def test_completion_demands_the_transaction_that_began_with_the_lease(
    sql: str, fails: bool, database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await ctx.db.execute(sql)
        await ctx.db.execute("select 1")
        if fails:
            raise ValueError("and then it fails")

    delivery = await run_one(database_url, ledger, handler)
    assert (delivery["status"], await ledger.outcomes()) == ("dead", ["dead"])
    assert await ledger.effects() == (0 if "rollback" in sql else 1)
    assert delivery["error"].startswith("TransactionEnded: the handler ended its own transaction")


@pytest.mark.usefixtures("unchecked")
async def test_what_is_written_after_the_commit_is_not_applied_again(
    database_url: str, ledger: Reader
) -> None:
    """Effects before and after the commit are there once, or not at all."""

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await ctx.db.execute("commit; begin; set local search_path = public")
        await count(event, ctx)

    delivery = await run_one(database_url, ledger, handler)
    assert (delivery["status"], await ledger.outcomes()) == ("dead", ["dead"])
    assert await ledger.effects() == 1  # the second was rolled back


@pytest.mark.usefixtures("unchecked")
async def test_a_handler_that_commits_and_rejects_is_reported_for_the_commit(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await ctx.db.execute("commit")
        raise Reject("not ours")

    assert "ended its own transaction" in (await run_one(database_url, ledger, handler))["error"]


@pytest.mark.usefixtures("unchecked")
async def test_a_handler_that_rolls_back_has_not_acted_for_its_key(
    database_url: str, ledger: Reader
) -> None:
    """Outside of the transaction, that it has acted would be committed without its effect."""

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await ctx.db.execute("rollback")

    delivery = await run_one(database_url, ledger, handler, once_per=KeyPath.parse("id"))
    assert delivery["error"].startswith("TransactionEnded: the handler ended its own transaction")
    [key] = await ledger.rows("select finished_at from gateway.once_keys")
    assert key["finished_at"] is None


@pytest.mark.parametrize("call", ["do $$ begin commit; end $$", "call public.ends_it()"])
async def test_a_block_that_commits_is_refused_by_postgres(
    call: str, database_url: str, ledger: Reader
) -> None:
    """A DO block or a procedure may commit only if it is called outside of a transaction."""
    await ledger.run(
        "create procedure public.ends_it() language plpgsql as $$ begin commit; end $$"
    )

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await ctx.db.execute(call)

    delivery = await run_one(database_url, ledger, handler)
    assert (delivery["status"], await ledger.outcomes()) == ("dead", ["dead"])
    assert await ledger.effects() == 0
    assert "has tried to end the handler's transaction" in delivery["error"]


@pytest.mark.parametrize(
    "sql",
    [
        "savepoint a; select 1; rollback to savepoint a; release savepoint a",
        "savepoint a; rollback work to a",
        "savepoint a; rollback transaction to savepoint a",
        "select case when true then 1 end; select 'commit; rollback', $$ commit; $$",
        "insert into effects (event_id, handler) values ('commit; end', 'a')"
        " on conflict do nothing",
        "create or replace function f() returns int language sql"
        " begin /* c */ atomic select case when true then 1 end; end",
        "create temp table commit (id int) on commit drop; select * from commit",
        "/* commit; */ select 1 -- ; commit",
        "select E'it\\'s; commit'",
        "prepare transaction_totals as select 1; deallocate transaction_totals",
        "begin",
        "set transaction isolation level read committed",
    ],
)
async def test_other_statements_pass(sql: str, database_url: str, ledger: Reader) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        async with ctx.db.transaction():
            await ctx.db.execute(sql)
        await count(event, ctx)

    delivery = await run_one(database_url, ledger, handler)
    assert await ledger.outcomes() == ["done"], delivery["error"]
    assert await ledger.value("select count(*) from public.effects where event_id = 'evt_1'") == 1


async def test_a_proof_is_no_query_so_the_handler_chooses_the_isolation_level(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        await ctx.db.execute("set transaction isolation level serializable")
        await count(event, ctx)

    delivery = await run_one(database_url, ledger, handler)
    assert await ledger.outcomes() == ["done"], delivery["error"]


async def test_every_delivery_of_a_chain_has_a_proof_of_its_own(
    database_url: str, ledger: Reader
) -> None:
    """Only statements of the gateway's own run here, so each commit begins the next transaction."""
    proofs: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        await ctx.upsert("totals", key={"id": event.id}, values={"n": 1})
        row = await transaction_of(ctx).run_own(
            "select current_setting('gateway.transaction', true) as proof"
        )
        assert row is not None
        proofs.append(row["proof"])

    await ledger.run("create table public.totals (id text primary key, n int)")
    await claim_all(database_url, [make_claim(f"evt_{n}") for n in range(100)])
    async with working(database_url, subscribe(handler), concurrency=2):
        await until(lambda: is_settled(ledger))
    assert await ledger.statuses() == {"done": 100}
    assert set(await ledger.outcomes()) == {"done"}
    assert await ledger.value("select count(*) from public.totals") == 100
    assert len(set(proofs)) == 100
    assert all(proofs)


async def test_a_settlement_from_another_transaction_is_refused_to_any_driver(
    database_url: str,
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    connection = await asyncpg.connect(database_url)
    row = await connection.fetchrow(
        "update gateway.deliveries set status = 'running', runs = 1, leased_at = now(),"
        " leased_until = now() + interval '1 h', lease_token = gen_random_uuid()"
        " returning id, lease_token"
    )
    assert row is not None
    settle = "select gateway.settle_done($1, $2, 'proof')"
    await connection.execute("begin; select set_config('gateway.transaction', 'proof', true)")
    await connection.execute("commit and chain")
    with pytest.raises(asyncpg.PostgresError, match="is not the transaction in which delivery"):
        await connection.execute(settle, *row)
    await connection.execute(
        "rollback; begin; select set_config('gateway.transaction', 'proof', true)"
    )
    await connection.execute(settle, *row)
    await connection.execute("commit")
    assert await connection.fetchval("select status from gateway.deliveries") == "done"
    await connection.close()
