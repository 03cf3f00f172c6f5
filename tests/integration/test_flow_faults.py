"""What handlers ask for, through answers that get lost, clocks that jump and runs that overlap."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from gateway import Context, Event, Reject
from gateway.base.errors import LeaseLost
from gateway.base.model import Lease, OnDead, Rate
from gateway.config.registry.key_path import KeyPath
from gateway.ledger.connection import QUERIES, Connection
from gateway.ledger.deliveries import DONE, lease_due, settle
from gateway.ledger.effects import begin_effect, finish_effect
from gateway.ledger.encryption import OPEN
from gateway.ledger.ordering import OrderingKey, StuckKeys, advance
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import count, subscribe, working

HANDLER = ("stripe", "handlers.count")
SECOND = timedelta(seconds=1)
BLOCKED = "select count(*) > 0 from pg_locks where not granted"
ARRIVES = "update gateway.deliveries set status = 'pending' where event_id = 'evt_2'"
UNFINISHED = "select count(*) from gateway.deliveries where status not in ('done', 'dead')"


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    """A second one, beside that of the reader."""
    found: Connection = await asyncpg.connect(database_url)
    yield found
    await found.close()


async def lease_one(connection: Connection) -> Lease:
    [lease] = await lease_due(connection, 1, [HANDLER], SECOND)
    return lease


async def _is_finished(ledger: Reader) -> bool:
    return bool(await ledger.value(UNFINISHED) == 0)


async def all_are_done(ledger: Reader, n: int) -> bool:
    return await ledger.statuses() == {"done": n}


async def test_a_result_whose_answer_got_lost_is_kept_again_and_no_lease_is_given_up(
    database_url: str, connection: Connection
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    lease = await lease_one(connection)
    await begin_effect(connection, lease, "mail", again=True, encryption=OPEN)
    for _ in range(2):
        await finish_effect(connection, lease, "mail", b'"sent"', encryption=OPEN)
    kept = await begin_effect(connection, lease, "mail", again=True, encryption=OPEN)
    assert (kept.is_done, kept.result) == (True, "sent")


async def test_a_run_that_begins_while_the_one_before_finishes_gets_what_came_of_it(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    """It waits for the other's commit, and its own look was before that."""
    await claim_all(database_url, [make_claim("evt_1")])
    lost = await lease_one(connection)
    await begin_effect(connection, lost, "mail", again=True, encryption=OPEN)
    await ledger.run("update gateway.deliveries set status = 'pending', lease_token = null")
    held = await lease_one(connection)
    transaction = connection.transaction()
    await transaction.start()
    await finish_effect(connection, lost, "mail", b'"sent"', encryption=OPEN)
    other = await asyncpg.connect(database_url)
    try:
        asking = asyncio.create_task(begin_effect(other, held, "mail", again=True, encryption=OPEN))
        await until(lambda: ledger.value(BLOCKED))
        await transaction.commit()
        effect = await asking
    finally:
        await other.close()
    assert (effect.is_ours, effect.is_done, effect.result) == (False, True, "sent")


async def test_a_run_without_its_lease_begins_nothing(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    lost = await lease_one(connection)
    await ledger.run("update gateway.deliveries set status = 'pending', lease_token = null")
    await lease_one(connection)
    with pytest.raises(LeaseLost):
        await begin_effect(connection, lost, "mail", again=True, encryption=OPEN)
    assert await ledger.value("select count(*) from gateway.effects") == 0


async def test_the_end_of_one_and_the_arrival_of_the_next_do_not_miss_each_other(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    """Neither can see the other yet: the lock lets one of them look when it can."""
    await claim_all(database_url, [make_claim("evt_1"), make_claim("evt_2")])
    await ledger.run("update gateway.deliveries set order_key = 'a', due_at = 'infinity'")
    turn = OrderingKey(*HANDLER, "a")
    await advance(connection, [turn])
    lease = await lease_one(connection)
    await ledger.run("update gateway.deliveries set status = 'discarded' where event_id = 'evt_2'")
    async with connection.transaction():
        await settle(connection, lease, DONE)
        await ledger.run(ARRIVES)
        giving = asyncio.create_task(_give(database_url, turn))
        await until(lambda: giving.done() or ledger.value(BLOCKED))
    await giving
    assert await ledger.value(
        "select due_at < 'infinity' from gateway.deliveries where event_id = 'evt_2'"
    )


async def _give(url: str, turn: OrderingKey) -> None:
    connection = await asyncpg.connect(url)
    try:
        await advance(connection, [turn])
    finally:
        await connection.close()


async def test_a_key_is_not_done_where_the_commit_of_its_run_failed(
    database_url: str, ledger: Reader
) -> None:
    """The key, the effect and the completion are one commit."""
    await ledger.run(
        "create table public.checked (id integer unique deferrable initially deferred)"
    )

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        if event.id == "evt_1":
            await ctx.db.execute("insert into checked values (1), (1)")

    turn = {"handlers.count": "1"}
    for event_id in ("evt_1", "evt_2"):
        claim = make_claim(event_id, body=b'{"key":1}', order_keys=turn)
        await claim_all(database_url, [claim])
    async with working(database_url, subscribe(handler, once_per=KeyPath.parse("key"))):
        await until(lambda: _is_finished(ledger))
    assert await ledger.statuses() == {"done": 1, "dead": 1}
    assert await ledger.value("select event_id from public.effects") == "evt_2"


async def test_a_turn_that_was_given_before_the_clock_was_set_back_is_a_turn(
    database_url: str, ledger: Reader
) -> None:
    """It was claimed before the clock went ahead, and got its turn in the time that is gone."""
    await claim_all(database_url, [make_claim("evt_1", order_keys={"handlers.count": "a"})])
    await ledger.run("update gateway.deliveries set due_at = now() + interval '10 min'")
    assert await ledger.value(QUERIES["set_back"], timedelta(minutes=10), SECOND) == 1
    async with working(database_url, subscribe(count, order_by=KeyPath.parse("key"))):
        await until(lambda: all_are_done(ledger, 1))


async def test_one_that_waits_for_its_turn_still_does_when_the_clock_is_set_back(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(
        database_url, [make_claim(f"evt_{n}", order_keys={"handlers.count": "a"}) for n in range(2)]
    )
    await ledger.run("update gateway.deliveries set due_at = 'infinity'")
    assert await ledger.value(QUERIES["set_back"], timedelta(minutes=10), SECOND) == 0
    assert await ledger.value("select bool_and(due_at = 'infinity') from gateway.deliveries")


async def test_a_place_that_was_taken_before_the_clock_was_set_back_is_free_after_its_period(
    database_url: str, ledger: Reader
) -> None:
    async def handler(_: Event, __: Context) -> None:
        """Nothing."""

    paced = subscribe(handler, rate=Rate(count=2, period=timedelta(milliseconds=100)))
    async with working(database_url, paced):
        await until(lambda: ledger.value("select count(*) = 2 from gateway.places"))
        await ledger.run("update gateway.places set free_at = now() + interval '10 min'")
        await claim_all(database_url, [make_claim(f"evt_{n}") for n in range(3)])
        await until(lambda: all_are_done(ledger, 3))


@pytest.mark.parametrize("on_dead", OnDead)
async def test_what_waits_for_a_turn_runs_where_its_handler_has_an_order_no_more(
    database_url: str, ledger: Reader, on_dead: OnDead
) -> None:
    """As after a deploy that took the `order_by` away while something waited for its turn."""

    async def handler(event: Event, _: Context) -> None:
        if event.id == "evt_1":
            raise Reject("no")

    for event_id in ("evt_1", "evt_2"):
        claim = make_claim(event_id, order_keys={"handlers.count": "a"})
        await claim_all(database_url, [claim])
    ordered = subscribe(handler, order_by=KeyPath.parse("key"), on_dead=OnDead.BLOCK)
    async with working(database_url, ordered):
        await until(lambda: ledger.value("select min(status) = 'dead' from gateway.deliveries"))
    if on_dead is OnDead.PASS:
        await ledger.run("update gateway.handlers set on_dead = 'pass'")
    async with working(database_url, subscribe(handler)):
        await until(lambda: _is_finished(ledger))


async def test_turns_that_nobody_gave_are_found_a_few_at_each_look(
    database_url: str, ledger: Reader, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all handlers and keys, however many: a look goes on where the last one ended."""
    monkeypatch.setattr("gateway.ledger.ordering.KEYS_A_LOOK", 3)
    monkeypatch.setattr("gateway.ledger.ordering.KEYS_A_STATEMENT", 2)
    both = ("handlers.count", "handlers.tally")
    await claim_all(database_url, [make_claim(f"evt_{n}", handlers=both) for n in range(4)])
    await ledger.run("update gateway.deliveries set order_key = event_id, due_at = 'infinity'")
    turns = StuckKeys()
    found = [await turns.free(connection) for _ in range(4)]
    assert [len(ids) for ids in found] == [3, 3, 2, 0]
    assert await ledger.value("select bool_and(due_at <= now()) from gateway.deliveries")
