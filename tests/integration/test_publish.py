"""`ctx.publish`: jobs that are committed with what the handler writes, or not at all."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from gateway import Context, Event
from gateway.config.registry.key_path import KeyPath
from gateway.providers import PROVIDERS
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import Function, make_config, make_route, subscribe, working

CONFIG = make_config(
    make_route(), make_route("tasks", provider=PROVIDERS["publish"], max_body=1000)
)


class Jobs:
    """The handler of the queue: what it got, in order."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, Any]] = []

    async def __call__(self, event: Event, _: Context) -> None:
        assert (event.route, event.provider) == ("tasks", "publish")
        self.got.append((event.id, event.type, event.payload))


async def run(
    url: str, ledger: Reader, publisher: Function, jobs: Function, status: str = "done", **flow: Any
) -> None:
    """Until the deliveries of both routes are done."""
    subscriptions = [subscribe(publisher), subscribe(jobs, name="jobs", route="tasks", **flow)]
    async with working(url, *subscriptions, config=CONFIG):
        await until(lambda: _all_are(ledger, status))


async def _all_are(ledger: Reader, status: str) -> bool:
    return set(await ledger.statuses()) == {status}


async def test_a_job_reaches_the_handlers_of_its_queue(database_url: str, ledger: Reader) -> None:
    jobs = Jobs()
    new: list[bool] = []

    async def publisher(event: Event, ctx: Context) -> None:
        new.append(await ctx.publish("tasks", {"order": 1}, key="order:1"))
        new.append(await ctx.publish("tasks", {"order": 2}, key="order:2", type="order.paid"))

    await claim_all(database_url, [make_claim("evt_1")])
    await run(database_url, ledger, publisher, jobs)
    assert new == [True, True]
    assert sorted(jobs.got) == [
        ("order:1", "tasks", {"order": 1}),
        ("order:2", "order.paid", {"order": 2}),
    ]


async def test_a_job_is_rolled_back_with_its_handler(database_url: str, ledger: Reader) -> None:
    jobs = Jobs()

    async def publisher(_: Event, ctx: Context) -> None:
        await ctx.publish("tasks", {"attempt": ctx.attempt})
        if ctx.attempt < 3:
            raise RuntimeError("after the publish")

    await claim_all(database_url, [make_claim("evt_1")])
    await run(database_url, ledger, publisher, jobs)
    assert [payload for _, _, payload in jobs.got] == [{"attempt": 3}]


async def test_the_same_key_twice_is_one_job_whoever_publishes_it(
    database_url: str, ledger: Reader
) -> None:
    jobs, new = Jobs(), list[bool]()

    async def publisher(_: Event, ctx: Context) -> None:
        new.append(await ctx.publish("tasks", {"order": 1}, key="order:1"))
        new.append(await ctx.publish("tasks", {"order": 1}, key="order:1"))

    await claim_all(database_url, [make_claim(f"evt_{n}") for n in range(8)])
    await run(database_url, ledger, publisher, jobs)
    assert len(jobs.got) == 1
    assert new.count(True) == 1


async def test_without_a_key_it_is_one_job_per_call_and_delivery_also_after_a_replay(
    database_url: str, ledger: Reader
) -> None:
    jobs = Jobs()
    runs = 0

    async def publisher(_: Event, ctx: Context) -> None:
        nonlocal runs
        runs += 1
        await ctx.publish("tasks", {"n": 1})
        await ctx.publish("tasks", {"n": 2})

    await claim_all(database_url, [make_claim("evt_1"), make_claim("evt_2")])
    await run(database_url, ledger, publisher, jobs)
    assert len(jobs.got) == 4
    first = await ledger.value("select min(id) from gateway.deliveries where route = 'stripe'")
    await ledger.replay(first)
    await run(database_url, ledger, publisher, jobs)
    assert (runs, len(jobs.got)) == (3, 4)


async def test_a_job_with_an_order_waits_for_its_turn(database_url: str, ledger: Reader) -> None:
    got: list[int] = []

    async def job(event: Event, _: Context) -> None:
        got.append(event.payload["n"])
        await asyncio.sleep(0.01)

    async def publisher(_: Event, ctx: Context) -> None:
        for n in range(6):
            await ctx.publish("tasks", {"n": n, "customer": "a"})

    await claim_all(database_url, [make_claim("evt_1")])
    await run(database_url, ledger, publisher, job, order_by=KeyPath.parse("customer"))
    assert got == list(range(6))


async def test_a_job_that_was_published_in_an_undone_savepoint_is_not_there(
    database_url: str, ledger: Reader
) -> None:
    jobs = Jobs()

    async def publisher(_: Event, ctx: Context) -> None:
        with suppress(KeyError):
            async with ctx.db.transaction():
                await ctx.publish("tasks", {}, key="undone")
                raise KeyError
        await ctx.publish("tasks", {}, key="kept")

    await claim_all(database_url, [make_claim("evt_1")])
    await run(database_url, ledger, publisher, jobs)
    assert [key for key, _, _ in jobs.got] == ["kept"]


async def test_a_queue_without_a_handler_keeps_its_jobs(database_url: str, ledger: Reader) -> None:
    async def publisher(_: Event, ctx: Context) -> None:
        await ctx.publish("tasks", {}, key="a")

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(publisher), config=CONFIG):
        await until(lambda: _all_are(ledger, "done"))
    assert await ledger.value("select count(*) from gateway.processed_events") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", {}), r"found queue 'nowhere'; expected one of tasks"),
        (("stripe", {}), r"found queue 'stripe'; expected one of tasks"),
        (("tasks", object()), r"ctx.publish\('tasks'\): the payload is not JSON"),
        (("tasks", "x" * 1000), r"found a payload of 1002 bytes; expected at most max_body"),
        (("tasks", {}, ""), r"key: found ''; expected a text"),
        (("tasks", {}, "a\0"), r"key: found 'a\\x00'; expected a text"),
        (("tasks", {}, "x" * 256), r"key: found 'x+.*; expected a text of at most 255"),
        (("tasks", {}, "a", "\ud800"), r"type: found '\\ud800'; expected a text"),
    ],
)
async def test_what_can_be_no_job_is_refused_with_a_reason(
    database_url: str, ledger: Reader, arguments: tuple[Any, ...], message: str
) -> None:
    async def publisher(_: Event, ctx: Context) -> None:
        with pytest.raises((ValueError, TypeError), match=message):
            await ctx.publish(*arguments)

    await claim_all(database_url, [make_claim("evt_1")])
    await run(database_url, ledger, publisher, Jobs())
