"""Bulk operations on everything that matches: each once, nothing else, whoever comes in between."""

import asyncio
import random
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway import Context, Event, Reject
from gateway.base.errors import CommandFailed, NotFound, TransitionRefused
from gateway.base.model import OnDead
from gateway.config.registry.key_path import KeyPath
from gateway.ledger.bulk import BATCH, Action, BulkStatus, find_bulk, resume_bulk, stop_bulk
from gateway.ledger.deliveries import discard, lease_due, replay
from gateway.ledger.filter import Filter
from gateway.operations.bulk import count_dead
from tests.support.bulk import Clerk, add_dead, add_events, blocked, clerk
from tests.support.ledger import Reader
from tests.support.waiting import until
from tests.support.workers import count, subscribe, working

HANDLERS = [("stripe", "handlers.count")]
HOUR = timedelta(hours=1)
PATH = KeyPath.parse("key")


async def replays(ledger: Reader) -> dict[int, int]:
    """How often each delivery was replayed."""
    rows = await ledger.rows(
        "select delivery_id, count(*) as n from gateway.audit"
        " where action = 'replay' group by delivery_id"
    )
    return {row["delivery_id"]: row["n"] for row in rows}


async def test_what_matches_is_replayed_once_and_the_rest_is_left_alone(
    database_url: str, ledger: Reader
) -> None:
    await add_events(ledger, 1200)
    await add_dead(ledger, 1200, "handlers.mail", error="ReadTimeout: 10.0.0.1 timed out")
    await add_dead(ledger, 700, "handlers.books", error="ReadTimeout: 10.0.0.1 timed out")
    await add_dead(ledger, 300, "handlers.other", error="ValueError: timed wrongly")
    async with clerk(database_url) as ann:
        bulk = await ann.do(route="stripe", handler="handlers.mail", error="time*out")
        assert (bulk["status"], bulk["total"], bulk["moved"], bulk["skipped"]) == (
            "done",
            1200,
            1200,
            0,
        )
    found = await ledger.rows(
        "select handler, status, count(*) as n, sum(attempts)::int as attempts, max(error) as error"
        " from gateway.deliveries group by 1, 2 order by 1"
    )
    assert [tuple(row.values()) for row in found] == [
        ("handlers.books", "dead", 700, 2100, "ReadTimeout: 10.0.0.1 timed out"),
        ("handlers.mail", "pending", 1200, 0, None),
        ("handlers.other", "dead", 300, 900, "ValueError: timed wrongly"),
    ]
    assert set((await replays(ledger)).values()) == {1}
    audit = await ledger.row(
        "select actor, action, reason, count(*) as n, count(distinct delivery_id) as each"
        " from gateway.audit where order_id = $1 and delivery_id is not null group by 1, 2, 3",
        bulk["bulk_id"],
    )
    assert tuple(audit.values()) == ("ann", "replay", "a test", 1200, 1200)
    begun = await ledger.row("select * from gateway.audit where delivery_id is null")
    assert (begun["action"], begun["order_id"], begun["handler"], begun["reason"]) == (
        "bulk replay", bulk["bulk_id"], "handlers.mail", "a test",
    )  # fmt: skip
    assert ann.woken
    assert len(ann.woken) <= 1200


async def test_every_filter_counts_what_it_moves(database_url: str, ledger: Reader) -> None:
    await add_events(ledger, 60)
    await add_events(ledger, 40, prefix="other_", type="c.d")
    await add_dead(ledger, 60)
    await add_dead(ledger, 40, prefix="other_", error=None)
    died = await ledger.value("select min(finished_at) from gateway.deliveries")
    filters = [
        ({"type": "c.*"}, 40),
        ({"account": "acct_0", "type": "a.b"}, 20),
        ({"error": "BOOM"}, 40),  # of which 20 were replayed by the one before
        ({"since": died, "until": died + timedelta(milliseconds=1)}, 0),
        ({"route": "github"}, 0),
        ({"until": died}, 0),
        ({}, 0),
    ]
    async with clerk(database_url) as ann:
        for filter, expected in filters:
            bulk = await ann.do(**filter)
            assert (bulk["total"], bulk["moved"]) == (expected, expected), filter


async def test_what_dies_again_is_not_replayed_twice_by_the_same_operation(
    database_url: str, ledger: Reader
) -> None:
    await add_events(ledger, 20)
    await add_dead(ledger, 20)
    async with clerk(database_url) as ann:
        bulk = await ann.begin(rate=40)  # ten a step
        steps = ann.steps(bulk)
        assert (await anext(steps))["moved"] == 10
        moved = list(await replays(ledger))
        dead = "update gateway.deliveries set status = 'dead', finished_at = $2 where id = any ($1)"
        await ledger.run(dead, moved[:5], datetime.now(UTC))
        # By a clock that was set back, as if before: in front of the mark, and after it.
        await ledger.run(dead, moved[5:8], bulk["began_at"] - 2 * HOUR)
        await ledger.run(dead, moved[8:], bulk["began_at"])
        async for stepped in steps:
            bulk = stepped
    assert (bulk["status"], bulk["moved"]) == ("done", 20)
    assert set((await replays(ledger)).values()) == {1}
    assert await ledger.statuses() == {"dead": 10, "pending": 10}


async def test_a_second_death_that_comes_in_between_is_left_alone(
    database_url: str, ledger: Reader
) -> None:
    """The step has seen it dead; before it gets there, another has replayed it, and it has died."""
    await add_events(ledger, 2)
    await add_dead(ledger, 2)
    async with clerk(database_url) as ann, clerk(database_url) as bob:
        bulk = await ann.begin()
        async with bob.connection.transaction():
            await bob.connection.execute(
                "update gateway.deliveries set finished_at = now(), error = 'again'"
                " where event_id = 'evt_1'"
            )
            late = asyncio.create_task(ann.run(bulk))
            await until(lambda: blocked(ledger))
        bulk = await late
    assert (bulk["total"], bulk["moved"], bulk["skipped"]) == (2, 1, 0)
    assert await ledger.value("select error from gateway.deliveries where status = 'dead'") == (
        "again"
    )


@pytest.mark.parametrize("action", [Action.REPLAY, Action.DISCARD])
async def test_a_bulk_operation_that_comes_late_neither_repeats_nor_undoes(
    action: Action, database_url: str, ledger: Reader
) -> None:
    """Single orders of other people hold the rows; one of what they replayed runs already."""
    await add_events(ledger, 4)
    await add_dead(ledger, 4)
    first, second, third, _ = await replay_order(ledger)
    async with clerk(database_url) as ann, clerk(database_url) as bob:
        bulk = await ann.begin(action)
        async with bob.connection.transaction():
            await replay(bob.connection, first, actor="bob", reason=None)
            [lease] = await lease_due(bob.connection, 1, HANDLERS, HOUR)
            await replay(bob.connection, second, actor="bob", reason=None)
            await discard(bob.connection, third, actor="bob", reason=None)
            late = asyncio.create_task(ann.run(bulk))
            await until(lambda: blocked(ledger))
        bulk = await late
    assert lease.delivery_id == first
    assert (bulk["total"], bulk["moved"], bulk["status"]) == (4, 1, "done")
    after = "pending" if action is Action.REPLAY else "discarded"
    rows = await ledger.rows("select status from gateway.deliveries order by id")
    assert [row["status"] for row in rows] == ["running", "pending", "discarded", after]


async def replay_order(ledger: Reader) -> list[int]:
    rows = await ledger.rows("select id from gateway.deliveries order by finished_at, id")
    return [row["id"] for row in rows]


async def test_bulk_operations_on_the_same_at_once_replay_each_once(
    database_url: str, ledger: Reader
) -> None:
    await add_events(ledger, 3000)
    await add_dead(ledger, 3000)
    async with clerk(database_url) as ann, clerk(database_url) as bob, clerk(database_url) as cat:
        bulks = await asyncio.gather(ann.do(), bob.do(until=datetime.now(UTC)), cat.do())
    assert sum(bulk["moved"] for bulk in bulks) == 3000
    assert [bulk["status"] for bulk in bulks] == ["done"] * 3
    counts = await replays(ledger)
    assert (len(counts), set(counts.values())) == (3000, {1})


async def test_bulk_operations_that_race_workers_and_each_other_leave_one_effect_each(
    database_url: str, ledger: Reader
) -> None:
    """Deliveries die and are replayed all the time, by whoever comes first."""
    await add_events(ledger, 200)
    await add_dead(ledger, 200)
    chance = random.Random(6)  # noqa: S311 (what fails)

    async def fragile(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        if chance.random() < 0.6:
            raise Reject("not yet")

    async def keep_replaying(someone: Clerk) -> int:
        rounds = 0
        while not await all_done(ledger, 200):
            bulk = await someone.do(error="*")
            assert bulk["status"] is BulkStatus.DONE
            rounds += 1
        return rounds

    handler = subscribe(fragile)
    async with (
        clerk(database_url) as ann,
        clerk(database_url) as bob,
        working(database_url, handler),
        working(database_url, handler),
    ):
        assert min(await asyncio.gather(keep_replaying(ann), keep_replaying(bob))) > 1
    effects = await ledger.row(
        "select count(*) as n, count(distinct event_id) as events from public.effects"
    )
    assert tuple(effects.values()) == (200, 200)
    again = "select count(*) - count(distinct (order_id, delivery_id)) from gateway.audit"
    assert await ledger.value(f"{again} where delivery_id is not null") == 0
    runs = await ledger.value(  # but for what was leased ahead, and handed back
        "select count(*) from gateway.attempts where outcome in ('done', 'dead')"
    )
    assert runs == await ledger.value("select count(*) from gateway.audit where action = 'replay'")


async def test_a_bulk_operation_that_was_resumed_elsewhere_runs_there_only(
    database_url: str, ledger: Reader
) -> None:
    await add_events(ledger, 100)
    await add_dead(ledger, 100)
    async with clerk(database_url) as ann, clerk(database_url) as bob:
        first = await ann.begin(rate=100)
        steps = ann.steps(first)
        assert (await anext(steps))["moved"] == 25
        second = await resume_bulk(
            bob.connection, first["bulk_id"], actor="bob", reason=None, rate=10_000
        )
        assert (second["moved"], second["rate"], second["resumed"]) == (25, 10_000, 1)
        with pytest.raises(CommandFailed, match="resumed by another process"):
            await anext(steps)
        assert (await find_bulk(ann.connection, first["bulk_id"]))["moved"] == 25
        third, fourth = await asyncio.gather(
            resume_bulk(ann.connection, first["bulk_id"], actor="ann", reason=None, rate=None),
            resume_bulk(bob.connection, first["bulk_id"], actor="bob", reason=None, rate=None),
        )
        ends = await asyncio.gather(ann.run(third), bob.run(fourth), return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["CommandFailed", "dict"]
    counts = await replays(ledger)
    assert (len(counts), set(counts.values())) == (100, {1})


async def test_a_stopped_bulk_operation_resumes_at_its_cursor_and_a_done_one_never(
    database_url: str, ledger: Reader
) -> None:
    await add_events(ledger, 50)
    await add_dead(ledger, 50)
    async with clerk(database_url) as ann:
        bulk = await ann.begin(rate=40)
        await anext(ann.steps(bulk))
        stopped = await stop_bulk(ann.connection, bulk["bulk_id"], actor="bob", reason=None)
        assert (stopped["status"], stopped["moved"]) == (BulkStatus.STOPPED, 10)
        assert (await ann.run(bulk))["moved"] == 10
        bulk = await resume_bulk(
            ann.connection, bulk["bulk_id"], actor="cat", reason=None, rate=100_000
        )
        assert (await ann.run(bulk))["moved"] == 50
        with pytest.raises(TransitionRefused, match="nothing to resume"):
            await resume_bulk(ann.connection, bulk["bulk_id"], actor="cat", reason=None, rate=None)
        assert (await stop_bulk(ann.connection, bulk["bulk_id"], actor="bob", reason=None))[
            "status"
        ] == "done"
    rows = await ledger.rows(
        "select actor, action from gateway.audit where delivery_id is null order by id"
    )
    assert [tuple(row.values()) for row in rows] == [
        ("ann", "bulk replay"), ("bob", "stop bulk"), ("cat", "resume bulk"),
    ]  # fmt: skip
    assert set((await replays(ledger)).values()) == {1}


async def test_what_has_lost_its_payload_is_skipped_and_counted(
    database_url: str, ledger: Reader
) -> None:
    await add_events(ledger, 30)
    await add_dead(ledger, 30)
    await ledger.run("delete from gateway.payloads where event_id in ('evt_3', 'evt_7')")
    async with clerk(database_url) as ann:
        counted = await count_dead(ann.connection, Filter(), datetime.now(UTC), 10)
        assert (counted.total, counted.without_payload) == (30, 2)
        bulk = await ann.do()
        assert (bulk["moved"], bulk["skipped"]) == (28, 2)
        assert await ledger.statuses() == {"dead": 2, "pending": 28}
        bulk = await ann.do(Action.DISCARD)
        assert (bulk["moved"], bulk["skipped"]) == (2, 0)


async def test_replayed_ones_with_an_order_take_turns(database_url: str, ledger: Reader) -> None:
    await add_events(ledger, 1100)
    await add_dead(ledger, 1100, ordered=True)
    ran: dict[str, list[int]] = defaultdict(list)

    async def handler(event: Event, _: Context) -> None:
        ran[event.payload["key"]].append(int(event.id.removeprefix("evt_")))

    async with (
        clerk(database_url) as ann,
        working(database_url, subscribe(handler, order_by=PATH)),
    ):
        assert (await ann.do())["moved"] == 1100
        await until(lambda: all_done(ledger, 1100))
    assert {key: sorted(numbers) for key, numbers in ran.items()} == dict(ran)
    assert sum(map(len, ran.values())) == 1100


async def all_done(ledger: Reader, n: int) -> bool:
    return await ledger.statuses() == {"done": n}


async def test_discarded_ones_free_those_that_they_blocked(
    database_url: str, ledger: Reader
) -> None:
    await add_events(ledger, 10)
    await add_dead(ledger, 5, ordered=True)  # five keys
    await ledger.run(
        "insert into gateway.deliveries (route, event_id, handler, order_key, due_at)"
        " select 'stripe', 'evt_' || n, 'handlers.count', 'key_' || n % 5, 'infinity'"
        " from generate_series(6, 10) as n"
    )
    await ledger.run("insert into gateway.handlers values ('stripe', 'handlers.count', 'block')")
    blocking = subscribe(count, order_by=PATH, on_dead=OnDead.BLOCK)
    async with clerk(database_url) as ann:
        assert (await ann.do(Action.DISCARD))["moved"] == 5
        assert len(ann.woken) == 5
    async with working(database_url, blocking):
        await until(lambda: discarded_and_done(ledger))


async def discarded_and_done(ledger: Reader) -> bool:
    return await ledger.statuses() == {"discarded": 5, "done": 5}


async def test_events_that_came_before_a_handler_are_delivered_to_it(
    database_url: str, ledger: Reader
) -> None:
    """In the order in which they came, with their keys; those that it had are left alone."""
    await add_events(ledger, 1100)
    await add_events(ledger, 30, prefix="other_", type="c.d")
    await add_events(ledger, 20, prefix="github_", route="github")
    await add_dead(ledger, 10, "handlers.new")
    await ledger.run("delete from gateway.payloads where event_id in ('evt_11', 'evt_12')")
    ran: dict[str, list[int]] = defaultdict(list)

    async def handler(event: Event, _: Context) -> None:
        ran[event.payload["key"]].append(int(event.id.removeprefix("evt_")))

    new = subscribe(handler, name="handlers.new", order_by=PATH)
    new = replace(new, types=("a.*",))
    since = datetime.now(UTC) - 3 * HOUR
    async with clerk(database_url, new) as ann, working(database_url, new):
        bulk = await ann.do(Action.DELIVER, handler="handlers.new", since=since)
        assert (bulk["total"], bulk["moved"], bulk["skipped"]) == (1090, 1088, 2)
        await until(lambda: dead_and_done(ledger, 10, 1088))
        again = await ann.begin(Action.DELIVER, handler="handlers.new", since=since)
        assert again["total"] == 2
    assert {key: sorted(numbers) for key, numbers in ran.items()} == dict(ran)
    assert sorted(n for numbers in ran.values() for n in numbers) == list(range(13, 1101))
    keys = await ledger.value(
        "select count(distinct order_key) from gateway.deliveries where status = 'done'"
    )
    assert keys == 5
    audit = await ledger.row(
        "select count(*) as n from gateway.audit where action = 'deliver' and order_id = $1",
        bulk["bulk_id"],
    )
    assert audit["n"] == 1088


async def dead_and_done(ledger: Reader, dead: int, done: int) -> bool:
    return await ledger.statuses() == {"dead": dead, "done": done}


async def test_a_delivery_honours_route_type_account_and_time(
    database_url: str, ledger: Reader
) -> None:
    await add_events(ledger, 30)
    await add_events(ledger, 30, prefix="other_", type="a.c")
    await add_events(ledger, 30, route="github")
    both = [subscribe(count, name="handlers.new", route=route) for route in ("stripe", "github")]
    came = await ledger.value("select min(received_at) from gateway.processed_events")
    async with clerk(database_url, *both) as ann:
        asked = {"handler": "handlers.new", "since": came}
        for more, expected in [
            ({"until": came}, 0),
            ({"route": "github", "account": "acct_1"}, 10),
            ({"type": "a.b", "route": "stripe"}, 30),
            ({"type": "a.b"}, 20),
            ({}, 30),
        ]:
            bulk = await ann.do(Action.DELIVER, **asked, **more)
            assert (bulk["total"], bulk["moved"]) == (expected, expected), more
        with pytest.raises(NotFound, match=r"did you mean handlers\.new"):
            await ann.begin(Action.DELIVER, handler="handlers.nev", since=came)
        with pytest.raises(NotFound, match="route 'tasks' has not the handler"):
            await ann.begin(Action.DELIVER, **asked, route="tasks")


async def test_a_prune_that_comes_first_takes_its_event_from_a_delivery(
    database_url: str, ledger: Reader
) -> None:
    await add_events(ledger, 3)
    since = datetime.now(UTC) - 3 * HOUR
    async with (
        clerk(database_url, subscribe(count)) as ann,
        clerk(database_url) as pruner,
    ):
        bulk = await ann.begin(Action.DELIVER, handler="handlers.count", since=since)
        async with pruner.connection.transaction():
            await pruner.connection.execute(
                "select from gateway.processed_events where event_id = 'evt_2' for update"
            )
            await pruner.connection.execute("delete from gateway.payloads where event_id = 'evt_2'")
            late = asyncio.create_task(ann.run(bulk))
            await until(lambda: late.done() or blocked(ledger))
        bulk = await late
    assert (bulk["total"], bulk["moved"], bulk["skipped"]) == (3, 2, 1)


async def test_an_order_is_carried_out_in_small_steps(database_url: str, ledger: Reader) -> None:
    await add_events(ledger, 2 * BATCH + 1)
    await add_dead(ledger, 2 * BATCH + 1)
    async with clerk(database_url) as ann:
        bulk = await ann.begin()
        moved = [stepped["moved"] async for stepped in ann.steps(bulk)]
    assert moved == [BATCH, 2 * BATCH, 2 * BATCH + 1]


async def test_an_order_that_nobody_is_at_is_idle(database_url: str, ledger: Reader) -> None:
    await add_events(ledger, 1)
    await add_dead(ledger, 1)
    async with clerk(database_url) as ann:
        bulk = await ann.begin()
        assert not (await find_bulk(ann.connection, bulk["bulk_id"]))["is_idle"]
        await ledger.run("update gateway.bulk_orders set stepped_at = now() - interval '31 s'")
        assert (await find_bulk(ann.connection, bulk["bulk_id"]))["is_idle"]
        bulk = await resume_bulk(
            ann.connection, bulk["bulk_id"], actor="ann", reason=None, rate=None
        )
        assert not bulk["is_idle"]
        await ann.run(bulk)
        await ledger.run("update gateway.bulk_orders set stepped_at = now() - interval '31 s'")
        assert not (await find_bulk(ann.connection, bulk["bulk_id"]))["is_idle"]


ERRORS = [
    'ReadTimeout: GET "https://mail.example.com/7" timed out after 30 s',
    'ReadTimeout: GET "https://mail.example.com/8" timed out after 31.5 s',
    "KeyError: 'customer'",
    "KeyError: 'amount'",
    "ValueError: the customers' card isn't valid",
    "ConnectError: [Errno 111] 10.0.0.1:443, 10.0.0.2:443 refused",
    "ConnectError: [Errno 111] 10.0.0.7:443 refused",
    "UniqueViolation: `order_9482` % 100_000 \\ * ?",
    "UniqueViolation: `order_1` % 7_000 \\ * ?",
    'broken: "never closed ' + "x" * 400,
    'broken: "neither ' + "y" * 400,
    "two\nlines\tand a tab",
    "…",
    "",
    "req_1a2b3c-d4 failed",
    "req_ffff0 failed",
    "Straße 7 ünknown",
    "PushFailed: HTTP 520",
    "PushFailed: HTTP 529",
    "PushFailed: HTTP 404 Not Found: order 1",
    "PushFailed: HTTP 404 Not Found: order 2",
]


async def test_errors_of_one_cause_are_one_group_that_can_be_asked_for(
    database_url: str, ledger: Reader
) -> None:
    for n, error in enumerate(ERRORS):
        await add_events(ledger, 2, prefix=f"evt_{n}_")
        await add_dead(ledger, 2, error=error, prefix=f"evt_{n}_")
    async with clerk(database_url) as ann:
        now = datetime.now(UTC)
        counted = await count_dead(ann.connection, Filter(), now, 100)
        assert counted.total == 2 * len(ERRORS)
        for group in counted.groups:
            asked = Filter(error=group["error"], handler=group["handler"])
            found = await count_dead(ann.connection, asked, now, 100)
            assert found.total >= group["count"], group
            assert "\n" not in group["error"]
    assert {group["error"]: group["count"] for group in counted.groups} == {
        "ReadTimeout: GET … timed out after … s": 4,
        "KeyError: …": 4,
        "ValueError: the customers' card isn't valid": 2,
        "ConnectError: [Errno … refused": 4,
        "UniqueViolation: … % … \\ * ?": 4,
        "broken: …": 4,
        "two…lines…and a tab": 2,
        "…": 2,
        "": 2,
        "… failed": 4,
        "Straße 7 ünknown": 2,  # all alike: as it is
        "PushFailed: HTTP 520": 2,
        "PushFailed: HTTP 529": 2,
        "PushFailed: HTTP 404 Not Found: order …": 4,
    }
