"""`order_by` and `once_per`: of one key one at a time, in the order of arrival, come what may."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import asyncpg
import orjson
import pytest

from gateway import Context, Event, Reject, Retry
from gateway.base.model import OnDead
from gateway.config.registry.key_path import KeyPath
from gateway.config.registry.registry import Subscription
from gateway.ledger.claims import Claim
from tests.support.ledger import Reader, claim_all, claiming, make_claim
from tests.support.waiting import until
from tests.support.workers import Function, looked_again, subscribe, swept, working

HANDLER = "handlers.count"
PATH = KeyPath.parse("key")


def ordered(function: Function, **options: Any) -> Subscription:
    return subscribe(function, order_by=PATH, **options)


def keyed(event_id: str, key: str, n: int = 0) -> Claim:
    """As the endpoint claims it for a handler with `order_by`."""
    body = orjson.dumps({"id": event_id, "type": "invoice.paid", "key": key, "n": n})
    return make_claim(event_id, body=body, order_keys={HANDLER: key})


async def claim_in_order(url: str, claims: Sequence[Claim]) -> None:
    """Each is acknowledged before the next is received."""
    async with claiming(url) as claimer:
        for claim in claims:
            await claimer.claim(claim)


async def all_are(ledger: Reader, *statuses: str) -> bool:
    return set(await ledger.statuses()) <= set(statuses)


async def test_each_key_runs_in_the_order_of_arrival_and_others_in_parallel(
    database_url: str, ledger: Reader
) -> None:
    ran: dict[str, list[int]] = defaultdict(list)
    at_once, most = set[str](), 0

    async def handler(event: Event, _: Context) -> None:
        nonlocal most
        key = event.payload["key"]
        assert key not in at_once
        at_once.add(key)
        most = max(most, len(at_once))
        await asyncio.sleep(0.005)
        ran[key].append(event.payload["n"])
        at_once.remove(key)

    claims = [keyed(f"evt_{n}", f"key_{n % 5}", n) for n in range(50)]
    await claim_in_order(database_url, claims)
    async with working(database_url, ordered(handler)), working(database_url, ordered(handler)):
        await until(lambda: all_are(ledger, "done"))
    assert {key: sorted(numbers) for key, numbers in ran.items()} == dict(ran)
    assert sum(map(len, ran.values())) == 50
    assert most > 1


async def test_one_that_waits_for_its_retry_holds_its_key_and_no_other(
    database_url: str, ledger: Reader
) -> None:
    ran: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        ran.append(event.id)
        if event.id == "evt_1" and ctx.attempt < 3:
            raise Retry(after=0.1)

    await claim_in_order(
        database_url, [keyed("evt_1", "a"), keyed("evt_2", "a"), keyed("evt_3", "b")]
    )
    async with working(database_url, ordered(handler)):
        await until(lambda: all_are(ledger, "done"))
    assert [event_id for event_id in ran if event_id != "evt_3"] == [
        "evt_1", "evt_1", "evt_1", "evt_2",
    ]  # fmt: skip
    assert ran.index("evt_3") < ran.index("evt_2")


async def test_a_dead_one_lets_the_next_pass(database_url: str, ledger: Reader) -> None:
    async def handler(event: Event, _: Context) -> None:
        if event.id == "evt_1":
            raise Reject("no")

    await claim_in_order(database_url, [keyed("evt_1", "a"), keyed("evt_2", "a")])
    async with working(database_url, ordered(handler)):
        await until(lambda: all_are(ledger, "dead", "done"))
    assert await ledger.statuses() == {"dead": 1, "done": 1}


@pytest.mark.parametrize("way", ["replay", "discard"])
async def test_a_dead_one_blocks_its_key_until_someone_decides(
    database_url: str, ledger: Reader, way: str
) -> None:
    ran: list[str] = []
    is_fixed = False

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)
        if event.id == "evt_1" and not is_fixed:
            raise Reject("no")

    await claim_in_order(
        database_url, [keyed("evt_1", "a"), keyed("evt_2", "a"), keyed("evt_3", "b")]
    )
    async with working(database_url, ordered(handler, on_dead=OnDead.BLOCK)) as worker:
        await until(lambda: len(ran) == 2)
        await until(lambda: _dead_and_done(ledger))
        await swept(ledger)  # which must not let it pass either
        await looked_again(worker)
        assert sorted(ran) == ["evt_1", "evt_3"]
        is_fixed = True
        delivery_id = await ledger.value("select id from gateway.deliveries where status = 'dead'")
        await getattr(ledger, way)(delivery_id)
        await until(lambda: all_are(ledger, "done", "discarded"))
    assert ran[2:] == (["evt_1", "evt_2"] if way == "replay" else ["evt_2"])


async def test_a_dead_one_does_not_block_what_was_before_it_and_is_replayed(
    database_url: str, ledger: Reader
) -> None:
    """Else the replay of it would be swallowed until someone decides on the later one, too."""
    ran: list[str] = []

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)

    async def is_done(delivery_id: int) -> bool:
        return bool((await ledger.delivery(delivery_id))["status"] == "done")

    await claim_in_order(database_url, [keyed(f"evt_{n}", "a") for n in (1, 2, 3)])
    await ledger.run(
        "update gateway.deliveries set due_at = 'infinity',"
        " status = case event_id when 'evt_1' then 'discarded' when 'evt_2' then 'dead'"
        " else 'pending' end"
    )
    first = await ledger.value("select min(id) from gateway.deliveries")
    async with working(database_url, ordered(handler, on_dead=OnDead.BLOCK)):
        await ledger.replay(first)
        await until(lambda: is_done(first))
        # As where whoever replays it is killed before it can give it the turn.
        await ledger.run(
            "update gateway.deliveries set status = 'pending', due_at = 'infinity' where id = $1",
            first,
        )
        await until(lambda: is_done(first))
        await ledger.replay(first + 1)
        await until(lambda: all_are(ledger, "done"))
    assert ran == ["evt_1", "evt_1", "evt_2", "evt_3"]


async def _dead_and_done(ledger: Reader) -> bool:
    statuses = await ledger.statuses()
    return statuses.get("dead") == 1 and statuses.get("done") == 1


async def test_a_policy_that_no_longer_blocks_frees_what_waits(
    database_url: str, ledger: Reader
) -> None:
    async def handler(event: Event, _: Context) -> None:
        if event.id == "evt_1":
            raise Reject("no")

    await claim_in_order(database_url, [keyed("evt_1", "a"), keyed("evt_2", "a")])
    async with working(database_url, ordered(handler, on_dead=OnDead.BLOCK)):
        await until(lambda: all_are(ledger, "dead", "pending"))
    async with working(database_url, ordered(handler)):
        await until(lambda: all_are(ledger, "dead", "done"))


async def test_a_replay_of_a_held_one_does_not_jump_the_queue(
    database_url: str, ledger: Reader
) -> None:
    ran: list[str] = []
    go = asyncio.Event()

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)
        await go.wait()

    await claim_in_order(database_url, [keyed(f"evt_{n}", "a") for n in range(3)])
    ids = [row["id"] for row in await ledger.rows("select id from gateway.deliveries order by id")]
    async with working(database_url, ordered(handler)) as worker:
        await until(lambda: ran)
        await ledger.replay(ids[2])
        await swept(ledger)
        await looked_again(worker)
        go.set()
        await until(lambda: all_are(ledger, "done"))
    assert ran == ["evt_0", "evt_1", "evt_2"]


async def test_a_replay_of_a_done_one_waits_for_the_one_that_runs(
    database_url: str, ledger: Reader
) -> None:
    ran: list[str] = []
    go = asyncio.Event()

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)
        if event.id == "evt_1":
            await go.wait()

    await claim_in_order(database_url, [keyed(f"evt_{n}", "a") for n in range(3)])
    first = await ledger.value("select min(id) from gateway.deliveries")
    async with working(database_url, ordered(handler)) as worker:
        await until(lambda: len(ran) == 2)
        await ledger.replay(first)
        await swept(ledger)
        await looked_again(worker)
        assert ran == ["evt_0", "evt_1"]
        go.set()
        await until(lambda: all_are(ledger, "done"))
    assert ran == ["evt_0", "evt_1", "evt_0", "evt_2"]


async def test_the_index_refuses_a_second_turn(database_url: str, ledger: Reader) -> None:
    """What enforces the order is the database, whatever a statement of ours gets wrong."""
    await claim_in_order(database_url, [keyed("evt_1", "a"), keyed("evt_2", "a")])
    with pytest.raises(asyncpg.UniqueViolationError, match="deliveries_turn"):
        await ledger.run("update gateway.deliveries set due_at = now() where due_at = 'infinity'")


async def test_a_turn_that_nobody_gave_is_given_by_the_sweep(
    database_url: str, ledger: Reader
) -> None:
    """As after a serve that was killed between its commit and the turn."""
    await claim_in_order(database_url, [keyed(f"evt_{n}", f"key_{n}") for n in range(3)])
    await ledger.run("update gateway.deliveries set due_at = 'infinity'")
    ran: list[str] = []

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)

    async with working(database_url, ordered(handler)):
        await until(lambda: len(ran) == 3)


async def test_claims_that_race_with_the_end_of_the_one_before_leave_nothing_behind(
    database_url: str, ledger: Reader
) -> None:
    """Without the lock that both take, one of them would wait for a turn that nobody gives."""
    ran: list[int] = []

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.payload["n"])

    async with (
        working(database_url, ordered(handler)) as worker,
        claiming(database_url) as claimer,
    ):
        for n in range(150):
            claimed = await claimer.claim(keyed(f"evt_{n}", "a", n))
            worker.hint(claimed.delivery_ids)
        await until(lambda: len(ran) == 150)
    assert ran == sorted(ran)


async def test_a_worker_that_is_lost_keeps_the_turn_for_its_delivery(
    database_url: str, ledger: Reader
) -> None:
    ran: list[str] = []

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)

    await claim_in_order(database_url, [keyed("evt_1", "a"), keyed("evt_2", "a")])
    await ledger.run(
        "update gateway.deliveries set status = 'running', runs = 1, leased_at = now(),"
        " lease_token = gen_random_uuid(), leased_until = now() - interval '1 s'"
        " where event_id = 'evt_1'"
    )
    async with working(database_url, ordered(handler)):
        await until(lambda: all_are(ledger, "done"))
    assert ran == ["evt_1", "evt_2"]


async def test_a_delivery_that_dies_of_lost_workers_lets_the_next_pass(
    database_url: str, ledger: Reader
) -> None:
    async def handler(_: Event, __: Context) -> None:
        """Nothing."""

    await claim_in_order(database_url, [keyed("evt_1", "a"), keyed("evt_2", "a")])
    await ledger.run(
        "update gateway.deliveries set status = 'running', runs = 9, losses = 9, workers_lost = 11,"
        " leased_at = now(), lease_token = gen_random_uuid(), leased_until = now() - interval '1 s'"
        " where event_id = 'evt_1'"
    )
    async with working(database_url, ordered(handler)):
        await until(lambda: all_are(ledger, "done", "dead"))
    assert await ledger.statuses() == {"done": 1, "dead": 1}


async def test_an_event_without_the_key_is_not_held(database_url: str, ledger: Reader) -> None:
    async def handler(_: Event, __: Context) -> None:
        """Nothing."""

    await claim_all(database_url, [make_claim("evt_1"), make_claim("evt_2")])
    async with working(database_url, ordered(handler)):
        await until(lambda: all_are(ledger, "done"))


def per_key(function: Function, **options: Any) -> Subscription:
    return subscribe(function, once_per=PATH, **options)


async def test_once_per_key_the_first_to_finish_wins_and_the_others_say_so(
    database_url: str, ledger: Reader
) -> None:
    ran: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        ran.append(event.id)
        await ctx.db.execute("insert into effects (event_id, handler) values ($1, '')", event.id)

    await claim_in_order(
        database_url, [keyed("evt_1", "a"), keyed("evt_2", "a"), keyed("evt_3", "b")]
    )
    async with working(database_url, per_key(handler)):
        await until(lambda: all_are(ledger, "done"))
    assert sorted(ran) == ["evt_1", "evt_3"]
    skipped = await ledger.row(
        "select d.event_id, d.attempts, a.outcome, a.error from gateway.attempts a"
        " join gateway.deliveries d on d.id = a.delivery_id where outcome = 'skipped'"
    )
    assert skipped == {
        "event_id": "evt_2",
        "attempts": 0,
        "outcome": "skipped",
        "error": "key a was done before, by event evt_1",
    }


async def test_once_per_key_another_runs_where_the_first_failed_for_good(
    database_url: str, ledger: Reader
) -> None:
    ran: list[str] = []

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)
        if event.id == "evt_1":
            raise Reject("no")

    await claim_in_order(database_url, [keyed("evt_1", "a"), keyed("evt_2", "a")])
    async with working(database_url, per_key(handler)):
        await until(lambda: all_are(ledger, "done", "dead"))
        assert ran == ["evt_1", "evt_2"]
        await ledger.replay(
            await ledger.value("select id from gateway.deliveries where status = 'dead'")
        )
        await until(lambda: all_are(ledger, "done"))
    assert ran == ["evt_1", "evt_2"]
    assert "skipped" in await ledger.outcomes()


async def test_a_skipped_delivery_lists_the_effect_that_it_leaves_unknown(
    database_url: str, ledger: Reader
) -> None:
    """Its run made a call and ended dead; then another event acted for the key."""

    def break_off() -> None:
        raise ConnectionResetError("the answer was lost")

    async def handler(event: Event, ctx: Context) -> None:
        if event.id == "evt_1":
            with suppress(ConnectionResetError):
                await ctx.once("mail", break_off)
            raise Reject("no")

    await claim_in_order(database_url, [keyed("evt_1", "a"), keyed("evt_2", "a")])
    async with working(database_url, per_key(handler)):
        await until(lambda: all_are(ledger, "done", "dead"))
        await ledger.replay(
            await ledger.value("select id from gateway.deliveries where status = 'dead'")
        )
        await until(lambda: all_are(ledger, "done"))
    assert "skipped" in await ledger.outcomes()
    effect = await ledger.row("select status, error from gateway.effects")
    assert effect == {"status": "unknown", "error": "ConnectionResetError"}


async def test_a_replay_of_the_winner_does_it_again(database_url: str, ledger: Reader) -> None:
    ran: list[str] = []

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)

    await claim_in_order(database_url, [keyed("evt_1", "a"), keyed("evt_2", "a")])
    async with working(database_url, per_key(handler)):
        await until(lambda: all_are(ledger, "done"))
        await ledger.replay(await ledger.value("select min(id) from gateway.deliveries"))
        await until(lambda: len(ran) == 2)
    assert ran == ["evt_1", "evt_1"]


async def test_of_one_key_none_is_begun_while_another_may_still_finish(
    database_url: str, ledger: Reader
) -> None:
    """Also where nothing else keeps them apart, as with another `order_by`."""
    ran: list[str] = []
    go = asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        ran.append(event.id)
        event.payload.clear()  # its key was read before
        await ctx.db.execute("insert into effects (event_id, handler) values ($1, '')", event.id)
        await go.wait()

    await claim_all(database_url, [make_claim(f"evt_{n}", body=b'{"key":"a"}') for n in range(3)])
    async with working(database_url, per_key(handler)):
        await until(lambda: _released(ledger, 2))
        go.set()
        await until(lambda: all_are(ledger, "done"))
    assert len(ran) == 1
    assert await ledger.effects() == 1
    assert sorted(set(await ledger.outcomes())) == ["done", "released", "skipped"]


async def _released(ledger: Reader, n: int) -> bool:
    return (await ledger.outcomes()).count("released") >= n


async def test_a_key_whose_worker_was_lost_is_taken_over(database_url: str, ledger: Reader) -> None:
    async def handler(_: Event, __: Context) -> None:
        """Nothing."""

    await claim_all(database_url, [make_claim(f"evt_{n}", body=b'{"key":"a"}') for n in range(2)])
    await ledger.run(
        "insert into gateway.once_keys (route, handler, key, delivery_id, token)"
        " select route, handler, 'a', id, gen_random_uuid() from gateway.deliveries"
        " where event_id = 'evt_0'"
    )
    async with working(database_url, per_key(handler)):
        await until(lambda: all_are(ledger, "done"))
    assert (await ledger.outcomes()).count("done") == 1


async def test_an_event_without_the_once_per_key_is_a_dead_letter_that_says_why(
    database_url: str, ledger: Reader
) -> None:
    async def handler(_: Event, __: Context) -> None:
        raise AssertionError("must not run without its guard")

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, per_key(handler)):
        await until(lambda: all_are(ledger, "dead"))
    assert (await ledger.delivery())["error"] == (
        'REJECTED: once_per="key": the payload has no value at key'
    )


async def test_a_key_of_two_values_is_the_pair_of_them(database_url: str, ledger: Reader) -> None:
    """Neither value alone counts, and what stands between them does not either."""
    pair = KeyPath.parse("merchant", "invoice")
    ran: list[str] = []

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)

    values = {"e1": ("a", "bc"), "e2": ("ab", "c"), "e3": ("a", "x"), "e4": ("a", "bc")}
    claims = []
    for event_id, (merchant, invoice) in values.items():
        payload = {"id": event_id, "merchant": merchant, "invoice": invoice}
        keys = {HANDLER: pair.key(payload) or ""}
        claims.append(make_claim(event_id, body=orjson.dumps(payload), order_keys=keys))
    lonely = orjson.dumps({"id": "e5", "merchant": "a"})
    await claim_in_order(database_url, [*claims, make_claim("e5", body=lonely)])
    async with working(database_url, subscribe(handler, once_per=pair)):
        await until(lambda: all_are(ledger, "done", "dead"))
    assert sorted(ran) == ["e1", "e2", "e3"]
    error = await ledger.value("select error from gateway.attempts where outcome = 'skipped'")
    assert error == 'merchant, invoice ["a","bc"] was done before, by event e1'
    error = await ledger.value("select error from gateway.deliveries where event_id = 'e5'")
    assert error == ('REJECTED: once_per="merchant, invoice": the payload has no value at invoice')


async def test_a_body_that_cannot_be_read_is_that_deliverys_failure_and_no_others(
    database_url: str, ledger: Reader
) -> None:
    async def handler(_: Event, __: Context) -> None:
        """Nothing."""

    await claim_all(database_url, [make_claim("evt_1", body=b"{"), keyed("evt_2", "a")])
    async with working(database_url, per_key(handler)):
        await until(lambda: all_are(ledger, "dead", "done"))
    assert await ledger.statuses() == {"dead": 1, "done": 1}
