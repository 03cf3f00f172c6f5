"""`concurrency` and `rate`: how many run at once and how many start, over all workers."""

import asyncio
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from gateway import Context, Event
from gateway.base.model import Lease, Rate
from gateway.config.registry.key_path import KeyPath
from gateway.config.registry.registry import Subscription
from gateway.ledger.connection import open_pool
from gateway.worker.intake import HeldBytes, Limited
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import count, looked_again, subscribe, working

MINUTE = timedelta(minutes=1)


async def done(ledger: Reader, n: int) -> bool:
    return (await ledger.statuses()).get("done") == n


class Gauge:
    """A handler that takes a moment and knows how many of it run."""

    def __init__(self) -> None:
        self.now = self.most = self.runs = 0

    async def __call__(self, _: Event, __: Context) -> None:
        self.now += 1
        self.runs += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1


async def work(url: str, workers: int, *subscriptions: Subscription) -> AsyncExitStack:
    """So many workers at once; they end with the stack."""
    stack = AsyncExitStack()
    for _ in range(workers):
        await stack.enter_async_context(working(url, *subscriptions))
    return stack


async def test_no_more_run_at_once_than_the_concurrency_over_all_workers(
    database_url: str, ledger: Reader
) -> None:
    gauge = Gauge()
    await claim_all(database_url, [make_claim(f"evt_{n}") for n in range(60)])
    async with await work(database_url, 3, subscribe(gauge, concurrency=3)):
        await until(lambda: done(ledger, 60))
    assert (gauge.runs, gauge.most) == (60, 3)


async def test_the_index_refuses_a_slot_that_is_taken(database_url: str, ledger: Reader) -> None:
    """What enforces the concurrency is the database, whatever a statement of ours gets wrong."""
    await claim_all(database_url, [make_claim("evt_1"), make_claim("evt_2")])
    with pytest.raises(asyncpg.UniqueViolationError, match="deliveries_slot"):
        await ledger.run(
            "update gateway.deliveries"
            " set status = 'running', slot = 1, lease_token = t.token, slot_token = t.token"
            " from (select gen_random_uuid() as token) t"
        )


async def test_the_slot_of_a_lost_worker_is_free_again(database_url: str, ledger: Reader) -> None:
    gauge = Gauge()
    await claim_all(database_url, [make_claim(f"evt_{n}") for n in range(3)])
    await ledger.run(
        "update gateway.deliveries set status = 'running', runs = 1, leased_at = now(), slot = 1,"
        " lease_token = t.token, slot_token = t.token, leased_until = now() - interval '1 s'"
        " from (select gen_random_uuid() as token) t where event_id = 'evt_0'"
    )
    async with await work(database_url, 1, subscribe(gauge, concurrency=1)):
        await until(lambda: done(ledger, 3))
    assert gauge.most == 1


async def test_a_limited_handler_neither_starves_nor_is_starved(
    database_url: str, ledger: Reader
) -> None:
    """One slot for all: the two kinds take turns."""
    gauge, order = Gauge(), list[str]()

    async def limited(event: Event, ctx: Context) -> None:
        order.append("limited")
        await gauge(event, ctx)

    async def plain(event: Event, ctx: Context) -> None:
        order.append("plain")
        await gauge(event, ctx)

    both = ("handlers.limited", "handlers.plain")
    await claim_all(database_url, [make_claim(f"evt_{n}", handlers=both) for n in range(10)])
    subscriptions = (
        subscribe(limited, name=both[0], concurrency=5),
        subscribe(plain, name=both[1]),
    )
    async with working(database_url, *subscriptions, concurrency=1):
        await until(lambda: done(ledger, 20))
    assert "limited" in order[:3]
    assert "plain" in order[:3]


async def test_limited_handlers_take_turns(database_url: str, ledger: Reader) -> None:
    """The one with the longer backlog does not keep the other from its first run."""
    order: list[str] = []

    async def handler(event: Event, _: Context) -> None:
        order.append(event.payload["of"])

    names = {"a": "handlers.a", "b": "handlers.b"}
    bodies = ["a"] * 60 + ["b"] * 3
    claims = [
        make_claim(f"evt_{n}", handlers=[names[of]], body=f'{{"of":"{of}"}}'.encode())
        for n, of in enumerate(bodies)
    ]
    await claim_all(database_url, claims)
    limited = [subscribe(handler, name=name, concurrency=10) for name in names.values()]
    async with working(database_url, *limited, concurrency=2):
        await until(lambda: done(ledger, 63))
    assert order.index("b") < 10


async def test_a_look_that_is_asked_for_while_another_is_under_way_is_taken(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=10)
    subscription = subscribe(count, concurrency=1)
    held = HeldBytes(1, slots=1)
    limited = Limited(
        pool, [subscription], lease=MINUTE, look_every=MINUTE, held=held, suspects=False
    )

    async def lease_none(*_: object, **__: object) -> list[Lease]:
        limited.look_at(subscription.key)  # a slot was freed, and the answer is of before
        return []

    monkeypatch.setattr("gateway.worker.intake.lease_limited", lease_none)
    assert [leases async for leases in limited.take(1)] == [[]]
    assert limited.wait_s == 0
    await pool.close()


async def starts(ledger: Reader) -> list[datetime]:
    rows = await ledger.rows("select started_at from gateway.attempts order by started_at")
    return [row["started_at"] for row in rows]


async def test_no_more_start_in_a_period_than_the_rate_over_all_workers(
    database_url: str, ledger: Reader
) -> None:
    rate = Rate(count=10, period=timedelta(seconds=1))
    await claim_all(database_url, [make_claim(f"evt_{n}") for n in range(35)])
    async with await work(database_url, 3, subscribe(count, rate=rate)):
        await until(lambda: done(ledger, 35))
    started = await starts(ledger)
    windows = [started[n + 10] - started[n] for n in range(len(started) - 10)]
    assert len(started) == 35
    # A start is noted a moment after its place was taken; without the rate, all are at once.
    assert min(windows) >= rate.period / 2


async def test_a_rate_is_kept_through_a_restart_of_the_workers(
    database_url: str, ledger: Reader
) -> None:
    rate = Rate(count=4, period=MINUTE)
    await claim_all(database_url, [make_claim(f"evt_{n}") for n in range(9)])
    for _ in range(3):
        async with working(database_url, subscribe(count, rate=rate)) as worker:
            await until(lambda: done(ledger, 4))
            await looked_again(worker)
    assert await ledger.statuses() == {"done": 4, "pending": 5}


@pytest.mark.parametrize("to", [2, 6])
async def test_a_changed_rate_holds_from_the_next_start_of_a_worker(
    database_url: str, ledger: Reader, to: int
) -> None:
    await claim_all(database_url, [make_claim(f"evt_{n}") for n in range(9)])
    async with working(database_url, subscribe(count, rate=Rate(count=4, period=MINUTE))):
        await until(lambda: done(ledger, 4))
    rate = Rate(count=to, period=MINUTE)
    async with working(database_url, subscribe(count, rate=rate)) as worker:
        await until(lambda: done(ledger, max(4, to)))
        await looked_again(worker)
    assert (await ledger.statuses())["done"] == max(4, to)


async def test_concurrency_rate_and_order_hold_together(database_url: str, ledger: Reader) -> None:
    gauge = Gauge()
    options: dict[str, Any] = {
        "order_by": KeyPath.parse("key"),
        "concurrency": 2,
        "rate": Rate(count=15, period=timedelta(milliseconds=500)),
    }
    await claim_all(
        database_url,
        [
            make_claim(f"evt_{n:02}", order_keys={"handlers.count": f"key_{n % 3}"})
            for n in range(30)
        ],
    )
    async with await work(database_url, 2, subscribe(gauge, **options)):
        await until(lambda: done(ledger, 30))
    assert gauge.most <= 2
    finished = await ledger.rows(
        "select order_key, array_agg(id order by finished_at) as ids"
        " from gateway.deliveries group by order_key"
    )
    assert len(finished) == 3
    assert all(row["ids"] == sorted(row["ids"]) for row in finished)
