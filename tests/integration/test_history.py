"""How it has been going: every step has its own, wherever the server's clock hangs."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from gateway.ledger.connection import Connection, open_pool
from gateway.ledger.statistics import MinuteStats, Span, bucket_of, read_history, seconds_of
from tests.support.ledger import Reader

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LAST_HOUR = Span(length=HOUR, step=MINUTE)
LAST_DAY = Span(length=24 * HOUR, step=HOUR)
LAST_WEEK = Span(length=7 * 24 * HOUR, step=HOUR)
SPANS = [LAST_HOUR, LAST_DAY, LAST_WEEK]
ZONES = ["UTC", "Asia/Kolkata", "America/St_Johns", "Australia/Eucla"]
"""Three of them are no whole number of hours from the first."""


@pytest.fixture(params=ZONES)
async def connection(
    database_url: str, request: pytest.FixtureRequest
) -> AsyncIterator[Connection]:
    """In a transaction, in which now() stands still, with a server that thinks in some zone."""
    connection = await asyncpg.connect(database_url, server_settings={"timezone": request.param})
    transaction = connection.transaction()
    await transaction.start()
    yield connection
    await transaction.rollback()
    await connection.close()


async def add(connection: Connection, span: Span, steps_ago: int, n: int, **place: Any) -> None:
    table, column = ("tally_hours", "hour") if span.step >= HOUR else ("tallies", "minute")
    values = {"route": "", "handler": "", "outcome": "accepted", "times": []} | place
    await connection.execute(
        f"insert into gateway.{table} ({column}, route, handler, outcome, n, times)"  # noqa: S608
        f" values (date_trunc('{column}', now(), 'UTC') - $1::interval, $2, $3, $4, $5, $6)",
        steps_ago * span.step,
        values["route"],
        values["handler"],
        values["outcome"],
        n,
        values["times"],
    )


@pytest.mark.parametrize("span", SPANS, ids=["1h", "24h", "7d"])
async def test_each_step_has_what_happened_in_it_and_no_other(
    connection: Connection, span: Span
) -> None:
    """From the first step of the span to the one that is not over; not what is before or after."""
    for steps_ago in (-1, 0, 1, span.steps - 1, span.steps):
        await add(connection, span, steps_ago, 1000 + steps_ago)
    history = await read_history(connection, span)
    now: datetime = await connection.fetchval("select now()")
    assert history.start == _floor(now, span.step) - (span.steps - 1) * span.step
    assert len(history.requests) == len(history.runs) == span.steps
    assert {n: dict(step) for n, step in enumerate(history.requests) if step} == {
        0: {"accepted": 1000 + span.steps - 1},
        span.steps - 2: {"accepted": 1001},
        span.steps - 1: {"accepted": 1000},
    }


def _floor(at: datetime, step: timedelta) -> datetime:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return epoch + (at - epoch) // step * step


@pytest.mark.parametrize("span", SPANS, ids=["1h", "24h", "7d"])
async def test_an_empty_ledger_has_steps_and_nothing_in_them(
    connection: Connection, span: Span
) -> None:
    history = await read_history(connection, span)
    assert len(history.requests) == span.steps
    assert not any(history.requests)
    assert not any(history.runs)
    assert history.acknowledged_ms(0.5) is None
    assert history.ran_ms(0.99) is None


@pytest.mark.parametrize("zone", ZONES)
async def test_what_is_counted_falls_into_the_hour_that_is_shown(
    database_url: str, ledger: Reader, zone: str
) -> None:
    """Counted by one process, looked at by another, each with a zone of its own."""
    stats = MinuteStats()
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=10, timezone=zone)
    for _ in range(2):
        stats.add("stripe", "", "accepted", 0.01)
        await stats.flush(pool)
    await pool.close()
    hours = await ledger.rows("select hour, n, times from gateway.tally_hours where route <> ''")
    assert [row["hour"] == _floor(row["hour"], HOUR) for row in hours] == [True] * len(hours)
    assert sum(row["n"] for row in hours) == 2
    assert sum(sum(row["times"]) for row in hours) == 2
    reader = await asyncpg.connect(database_url)
    history = await read_history(reader, LAST_DAY)
    await reader.close()
    assert sum(step.get("accepted", 0) for step in history.requests) == 2


@pytest.mark.parametrize("span", SPANS, ids=["1h", "24h", "7d"])
async def test_routes_and_handlers_are_added_up_and_all_refusals_are_one(
    database_url: str, ledger: Reader, span: Span
) -> None:
    """Counted under their names and together; the totals only once."""
    stats = MinuteStats()
    fast, slow = 0.001, 0.1
    for route in ("stripe", "github"):
        stats.add(route, "", "accepted")
        stats.add(route, "", "acknowledged", fast)
        stats.add(route, "", "BAD_SIGNATURE")
        stats.add(route, "", "STALE_TIMESTAMP")
        for handler in ("h1", "h2"):
            stats.add(route, handler, "done", slow)
            stats.add(route, handler, "lost", fast)
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=10)
    await stats.flush(pool)
    history = await read_history(pool, span)
    await pool.close()
    [requests] = [dict(step) for step in history.requests if step]
    assert requests == {"accepted": 2, "acknowledged": 2, "refused": 4}
    [runs] = [dict(step) for step in history.runs if step]
    assert runs == {"done": 4, "lost": 4}
    assert history.acknowledged == {bucket_of(fast): 2}
    assert history.ran == {bucket_of(slow): 4}, "of runs in which the handler decided"
    assert history.acknowledged_ms(0.99) == pytest.approx(seconds_of(bucket_of(fast)) * 1000)
    assert history.ran_ms(0.99) == pytest.approx(seconds_of(bucket_of(slow)) * 1000)
    assert await ledger.value("select sum(n)::int from gateway.totals") == 16
    assert await ledger.value("select count(*) from gateway.totals where route = ''") == 0
