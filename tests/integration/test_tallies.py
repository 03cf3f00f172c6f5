"""What is counted is what happened, however many count at once."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway import Context, Event, Reject
from gateway.ledger import statistics as module
from gateway.ledger.connection import QUERIES, TROUBLE, Pool, open_pool
from gateway.ledger.statistics import (
    KEPT,
    LAST,
    MinuteStats,
    StatsWriter,
    bucket_of,
    keeping,
    seconds_of,
)
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import subscribe, working

EVERY = timedelta(milliseconds=20)


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    pool = await open_pool(database_url, name="test", size=2, command_timeout_s=10)
    yield pool
    await pool.close()


async def counted(ledger: Reader) -> dict[tuple[str, str, str], int]:
    rows = await ledger.rows(
        "select route, handler, outcome, sum(n)::bigint as n from gateway.tallies"
        " where route <> '' group by 1, 2, 3"
    )
    return {(r["route"], r["handler"], r["outcome"]): r["n"] for r in rows}


async def test_two_processes_that_count_at_once_lose_nothing(
    database_url: str, ledger: Reader
) -> None:
    """5,000 each, in small pieces between the flushes, on the same keys."""
    keys = [("stripe", "", "accepted"), ("stripe", "handlers.a", "done"), ("b", "c", "retry")]

    async def process() -> None:
        stats = MinuteStats()
        async with keeping(stats, url=database_url, every=EVERY):
            for n in range(5_000):
                stats.add(*keys[n % 3], seconds=n / 1000)
                if n % 50 == 0:
                    await asyncio.sleep(0.005)

    await asyncio.gather(process(), process())
    assert await counted(ledger) == dict(zip(keys, [3_334, 3_334, 3_332], strict=True))
    took = "select sum(t) from gateway.tallies, unnest(times) as t where route <> ''"
    assert await ledger.value(took) == 10_000
    assert await ledger.value("select sum(n) from gateway.totals") == 10_000


@pytest.mark.timeout(300)
async def test_two_workers_count_each_run_once(database_url: str, ledger: Reader) -> None:
    """10,000 runs: what is counted equals the attempts, of each outcome."""

    async def some(event: Event, ctx: Context) -> None:
        if event.id.endswith("7"):
            raise Reject("sevens are not wanted")
        if event.id.endswith("3") and ctx.attempt == 1:
            raise RuntimeError("threes need a second try")

    claims = [make_claim(f"evt_{n:05}") for n in range(9_000)]
    await claim_all(database_url, claims)
    subscription = subscribe(some)

    async def all_ended() -> bool:
        return set(await ledger.statuses()) <= {"done", "dead"}

    async with (
        working(database_url, subscription, concurrency=32),
        working(database_url, subscription, concurrency=32),
    ):
        await until(all_ended, within_s=250)
    attempts = await ledger.rows(
        "select outcome, count(*) as n from gateway.attempts group by outcome"
    )
    assert await counted(ledger) == {
        ("stripe", "handlers.count", row["outcome"]): row["n"] for row in attempts
    }
    by_the_handler = [r for r in attempts if r["outcome"] not in ("released", "lost")]
    assert {r["outcome"]: r["n"] for r in by_the_handler} == {
        "done": 8_100, "dead": 900, "retry": 900,
    }  # fmt: skip


async def test_a_reaped_run_is_counted_as_lost(database_url: str, ledger: Reader) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    await ledger.run(
        "update gateway.deliveries set status = 'running', lease_token = gen_random_uuid(),"
        " leased_at = now() - interval '1 h', leased_until = now() - interval '1 h'"
    )

    async def nothing(event: Event, ctx: Context) -> None: ...

    async def is_done() -> bool:
        return await ledger.statuses() == {"done": 1}

    async with working(database_url, subscribe(nothing)):
        await until(is_done)
    assert await counted(ledger) == {
        ("stripe", "handlers.count", "lost"): 1,
        ("stripe", "handlers.count", "done"): 1,
    }


async def test_what_the_ledger_did_not_take_is_kept_with_its_minute(
    pool: Pool, ledger: Reader
) -> None:
    clock = [1000.0]
    stats = MinuteStats(lambda: clock[0])
    await ledger.run("alter table gateway.tallies rename to gone")
    for minutes_ago in (10, 5, 0):
        clock[0] = 1000.0 + (10 - minutes_ago) * 60
        for _ in range(3):
            stats.add("stripe", "", "accepted")
            with pytest.raises(TROUBLE):
                await stats.flush(pool)
    await ledger.run("alter table gateway.gone rename to tallies")
    await stats.flush(pool)
    await stats.flush(pool)
    rows = await ledger.rows(
        "select round(extract(epoch from now() - minute) / 60)::integer as ago, n"
        " from gateway.tallies where route <> '' order by minute"
    )
    assert [row["n"] for row in rows] == [3, 3, 3]
    assert [abs(row["ago"] - ago) <= 1 for row, ago in zip(rows, (10, 5, 0), strict=True)] == [
        True
    ] * 3


async def test_what_waits_for_a_ledger_that_is_away_is_bounded(
    pool: Pool, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(module, "MOST_HELD", 5)
    monkeypatch.setattr(module, "MOST_KEYS", 3)
    stats = MinuteStats(lambda: clock[0])
    await ledger.run("alter table gateway.tallies rename to gone")
    for minute in range(4):
        clock[0] += 61
        for n in range(5):
            stats.add(f"minute {minute}", f"handler {n}", "done")
        with pytest.raises(TROUBLE):
            await stats.flush(pool)
    await ledger.run("alter table gateway.gone rename to tallies")
    await stats.flush(pool)
    assert await counted(ledger) == {("minute 3", f"handler {n}", "done"): 1 for n in range(3)}


async def test_old_minutes_are_forgotten_and_totals_stay(pool: Pool, ledger: Reader) -> None:
    stats = MinuteStats()
    stats.add("stripe", "", "accepted", 0.2)
    await stats.flush(pool)
    await ledger.run("update gateway.tallies set minute = minute - $1::interval", KEPT)
    stats.add("stripe", "", "accepted", 0.2)
    await stats.flush(pool)
    await ledger.run("update gateway.tallies set minute = minute - interval '1 min'")
    stats.add("stripe", "", "accepted", 0.2)
    await stats.flush(pool)
    assert await counted(ledger) == {("stripe", "", "accepted"): 2}
    assert await ledger.value("select n from gateway.totals") == 3


async def test_every_bucket_that_there_is_is_added_up(pool: Pool, ledger: Reader) -> None:
    stats = MinuteStats()
    for bucket in range(LAST + 1):
        stats.add("stripe", "h", "done", seconds_of(bucket))
    await stats.flush(pool)
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    [row] = await ledger.rows(QUERIES["sum_times"], hour_ago, ["done"])
    assert row["times"] == [1] * (LAST + 1)


async def test_times_of_two_flushes_are_added_place_by_place(pool: Pool, ledger: Reader) -> None:
    stats = MinuteStats()
    for seconds in (0.0, 0.01):
        stats.add("stripe", "h", "done", seconds)
        await stats.flush(pool)
    times: list[int] = await ledger.value(
        "select array_agg(t order by place) from (select place, sum(t) as t"
        " from gateway.tallies, unnest(times) with ordinality as u (t, place)"
        " where route <> '' group by place) s"
    )
    assert [n for n, count in enumerate(times) if count] == [0, bucket_of(0.01)]
    assert sum(times) == 2


async def test_a_stop_waits_for_a_flush_that_is_under_way(
    pool: Pool, ledger: Reader, database_url: str
) -> None:
    """Broken off and sent again, it would count twice."""
    stats = MinuteStats()
    stats.add("stripe", "", "accepted")
    await stats.flush(pool)
    keeper = StatsWriter(stats, ledger=pool, every=EVERY)
    async with pool.acquire() as other, other.transaction():
        await other.execute("lock table gateway.totals in exclusive mode")
        stats.add("stripe", "", "accepted")
        keeper.start()

        async def waits() -> Any:
            return await ledger.value(
                "select count(*) from pg_stat_activity"
                " where wait_event_type = 'Lock' and datname = current_database()"
            )

        await until(waits)
        stopping = asyncio.create_task(keeper.stop())
        await asyncio.sleep(0)
    await stopping
    assert await counted(ledger) == {("stripe", "", "accepted"): 2}
