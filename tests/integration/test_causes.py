"""Of what deliveries died: told a few at a time, rightly, and forgotten with the last of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import asyncpg
import pytest

from gateway import Context, Event, Reject
from gateway.ledger import causes as module
from gateway.ledger.causes import LOCK, CauseGrouper, DeadGroup, count_causes
from gateway.ledger.connection import Connection, Pool, open_pool
from gateway.operations.stored_data import ErasureSubject, erase
from tests.support.bulk import add_dead, add_events, clerk
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import subscribe, working


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=10)
    yield pool
    await pool.close()


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 10)
    monkeypatch.setattr(module, "BATCHES", 4)


async def died(ledger: Pool | Connection) -> DeadGroup:
    return await count_causes(ledger, route=None, handler=None, cause=None, limit=100)


async def told(ledger: Pool | Connection) -> dict[str | None, int]:
    """How many died of what, in words; those of whom it is not told yet under None."""
    return {cause["error"]: cause["count"] for cause in (await died(ledger)).causes}


async def test_errors_of_one_cause_are_counted_together(pool: Pool, ledger: Reader) -> None:
    await add_events(ledger, 9)
    for n in range(3):
        await add_dead(ledger, 9, f"handlers.h{n}", error="KeyError: 'amount'")
    await ledger.run(
        "update gateway.deliveries set error = format('Timeout: order %s took %s s', event_id, id)"
        " where handler = 'handlers.h1'"
    )
    await ledger.run("update gateway.deliveries set error = null where handler = 'handlers.h2'")
    assert await told(pool) == {None: 27}
    assert await CauseGrouper().keep(pool) == 27
    found = {(c["handler"], c["error"]): c["count"] for c in (await died(pool)).causes}
    assert found == {
        ("handlers.h0", "KeyError: 'amount'"): 9,
        ("handlers.h1", "Timeout: order … took … s"): 9,
        ("handlers.h2", ""): 9,
    }


@pytest.mark.parametrize(
    ("error", "common"),
    [
        ("LookupError: no customer cus_AKwLszoUGAwDgl", "LookupError: no customer …"),
        ("no customer cus_AKwLszo4GAwDgl, twice", "no customer …, twice"),
        ("ConnectTimeoutError: card_declined", "ConnectTimeoutError: card_declined"),
        ("KeyError: payment_method_details", "KeyError: payment_method_details"),
        ("STRIPE_WEBHOOK_SECRET is not set", "STRIPE_WEBHOOK_SECRET is not set"),
        ("_FrozenInstance of module_Name", "_FrozenInstance of module_Name"),
        ("HTTP 503 of ord_AbcdefGhijkl", "HTTP 503 of …"),
    ],
)
async def test_an_id_is_told_from_a_word_with_or_without_digits(
    ledger: Reader, error: str, common: str
) -> None:
    assert await ledger.value("select gateway.common_error($1)", error) == common


async def test_the_error_itself_is_shown_only_where_it_was_always_the_same(
    pool: Pool, ledger: Reader
) -> None:
    """Also where the others died later, and where the first error comes once more after them."""
    await add_events(ledger, 4)
    causes = CauseGrouper()
    for n, (key, shown) in enumerate(
        [("a", "KeyError: 'a'"), ("a", "KeyError: 'a'"), ("b", "KeyError: …"), ("a", "KeyError: …")]
    ):
        await ledger.run(
            "insert into gateway.deliveries (route, event_id, handler, status, finished_at, error)"
            " values ('stripe', $1, 'handlers.count', 'dead', now(), $2)",
            f"evt_{n + 1}",
            f"KeyError: '{key}'",
        )
        await causes.keep(pool)
        assert await told(pool) == {shown: n + 1}


@pytest.mark.usefixtures("small_batches")
async def test_a_round_tells_only_so_many_and_the_next_ones_the_rest(
    pool: Pool, ledger: Reader
) -> None:
    await add_events(ledger, 95)
    await add_dead(ledger, 95)
    causes = CauseGrouper()
    assert [await causes.keep(pool) for _ in range(4)] == [40, 40, 15, 0]
    oldest_first = "select max(id) from gateway.deliveries where cause is not null"
    assert await told(pool) == {"ValueError: boom": 95}
    assert await ledger.value(oldest_first) == 95


@pytest.mark.usefixtures("small_batches")
async def test_several_workers_at_once_tell_each_once(database_url: str, ledger: Reader) -> None:
    await add_events(ledger, 300)
    await add_dead(ledger, 300)
    await ledger.run(
        "update gateway.deliveries set error = repeat(chr(97 + (id % 7)::int), 3) || ' failed'"
    )
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                await open_pool(database_url, name="test", size=1, command_timeout_s=10)
            )
            for _ in range(4)
        ]
        total = 0
        while total < 300:
            total += sum(await asyncio.gather(*(CauseGrouper().keep(worker) for worker in workers)))
        assert total == 300
        counts = await told(workers[0])
    assert sum(counts.values()) == 300
    assert len(counts) == 7
    assert await ledger.value("select count(*) from gateway.causes") == 7


async def test_only_one_at_a_time_tells_and_forgets(
    pool: Pool, connection: Connection, ledger: Reader
) -> None:
    """One that is forgotten could be given to a dead one at that very moment."""
    await add_events(ledger, 5)
    await add_dead(ledger, 5)
    await ledger.run(
        "insert into gateway.causes (route, handler, common) values ('stripe', 'gone', 'x')"
    )
    async with connection.transaction():
        assert await connection.fetchval("select pg_try_advisory_xact_lock($1)", LOCK)
        assert await CauseGrouper().keep(pool) == 0
        assert await ledger.value("select common from gateway.causes") == "x"
    assert await CauseGrouper().keep(pool) == 5
    assert await ledger.value("select common from gateway.causes") == "ValueError: boom"


async def test_one_that_another_holds_is_left_to_the_next_round(
    pool: Pool, connection: Connection, ledger: Reader
) -> None:
    """A replay that is under way holds up no sweep."""
    await add_events(ledger, 5)
    await add_dead(ledger, 5)
    async with connection.transaction():
        await connection.execute("select from gateway.deliveries where id = 3 for update")
        assert await CauseGrouper().keep(pool) == 4
    assert await CauseGrouper().keep(pool) == 1


@pytest.mark.parametrize("by_order", [False, True])
async def test_what_dies_again_of_something_else_is_told_anew(
    database_url: str, pool: Pool, ledger: Reader, by_order: bool
) -> None:
    """Replayed alone, or by an order for all."""
    words = ["the first thing", "something else"]

    async def fail(event: Event, ctx: Context) -> None:
        raise Reject(words[0])

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(fail)):
        await until(lambda: died_of(pool, words[0]))
        words.pop(0)
        if by_order:
            async with clerk(database_url) as ann:
                await ann.do()
        else:
            await ledger.replay((await ledger.delivery())["id"])
        await until(lambda: died_of(pool, words[0]))
    assert (await died(pool)).total == 1


async def died_of(pool: Pool, words: str) -> bool:
    return any(words in (error or "") for error in await told(pool))


async def test_a_cause_of_which_nobody_is_dead_any_more_is_forgotten(
    pool: Pool, ledger: Reader
) -> None:
    await add_events(ledger, 3)
    await add_dead(ledger, 3, "handlers.a", error="KeyError: 'a'")
    await add_dead(ledger, 3, "handlers.b", error="KeyError: 'b'")
    await CauseGrouper().keep(pool)
    for id in (1, 2, 3):
        await ledger.replay(id)
    await ledger.discard(4)
    await CauseGrouper().keep(pool)
    assert await told(pool) == {"KeyError: 'b'": 2}
    assert await ledger.value("select count(*) from gateway.causes") == 1


async def test_what_is_erased_is_in_no_cause_either(
    database_url: str, pool: Pool, connection: Connection, ledger: Reader
) -> None:
    """At once, whether or not a worker runs; what others died of stays."""
    claims = [make_claim(f"evt_{n}") for n in (1, 2)]
    grace, other = (
        claim._replace(envelope=replace(claim.envelope, account=account))
        for claim, account in zip(claims, ("acct_grace", "acct_other"), strict=True)
    )
    await claim_all(database_url, [grace, other])
    await ledger.run(
        "update gateway.deliveries set status = 'dead', finished_at = now(),"
        " error = case event_id when 'evt_1' then 'no address of Grace Hopper' else 'boom' end"
    )
    await CauseGrouper().keep(pool)
    assert await told(pool) == {"no address of Grace Hopper": 1, "boom": 1}
    await erase(
        connection, ErasureSubject(account="acct_grace"), None, actor="ann", reason="request 7"
    )
    assert await told(pool) == {"boom": 1}
    assert await ledger.rows("select common, error from gateway.causes") == [
        {"common": "boom", "error": "boom"}
    ]
