"""Connections to Postgres: never more than a process says that it opens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from structlog.testing import capture_logs

from gateway import Context, Event
from gateway.config.settings import Settings
from gateway.ledger.budget import (
    LEASE_CONNECTIONS,
    LEDGER_CONNECTIONS,
    ConnectionRoom,
    find_shortage,
    handler_connections,
    read_room,
    worker_connections,
)
from gateway.ledger.connection import connect
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import count, subscribe, working

SHARED = 3


@asynccontextmanager
async def counting(ledger: Reader, names: str) -> AsyncIterator[list[int]]:
    """How many connections there were of these names, each time that it was looked."""
    seen: list[int] = []
    query = (
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and application_name like $1"
    )

    async def look() -> None:
        while True:
            seen.append(await ledger.value(query, names))
            await asyncio.sleep(0)

    task = asyncio.create_task(look())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait({task})


async def is_done(ledger: Reader, deliveries: int) -> bool:
    return await ledger.statuses() == {"done": deliveries}


async def test_handlers_share_as_few_connections_as_they_are_told_to(
    direct_url: str, ledger: Reader
) -> None:
    """Sixteen slots, three connections: the others wait, and nothing fails for it."""

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await ctx.db.fetchval("select pg_sleep(0.005)")
        if event.id.endswith("7") and ctx.attempt == 1:
            raise RuntimeError("so that some roll back")

    await claim_all(direct_url, [make_claim(f"evt_{n}") for n in range(200)])
    other = await connect(direct_url, name="looking")
    async with (
        counting(Reader(other), "gateway worker handlers") as handlers,
        working(direct_url, subscribe(handler), concurrency=16, handler_connections=SHARED),
    ):
        await until(partial(is_done, ledger, 200))
    await other.close()
    assert max(handlers) == SHARED
    assert await ledger.effects() == 200


async def test_a_worker_keeps_to_its_budget(direct_url: str, ledger: Reader) -> None:
    await claim_all(direct_url, [make_claim(f"evt_{n}") for n in range(300)])
    other = await connect(direct_url, name="looking")
    async with (
        counting(Reader(other), "gateway worker%") as connections,
        working(direct_url, subscribe(count), concurrency=5),
    ):
        await until(partial(is_done, ledger, 300))
    await other.close()
    assert 0 < max(connections) <= 5 + LEASE_CONNECTIONS + LEDGER_CONNECTIONS


async def test_where_there_are_too_few_a_worker_says_so_and_starts(
    direct_url: str, ledger: Reader
) -> None:
    name = await ledger.value("select current_database()")
    await ledger.run(f'alter database "{name}" connection limit 20')
    with capture_logs() as logs:
        async with working(direct_url, subscribe(count)):
            pass
    [line] = [line for line in logs if line["event"] == "connections_scarce"]
    assert "opens up to 32 connections" in line["reason"]
    assert "20 are allowed (the database's connection limit), 1 in use" in line["reason"]


async def test_the_room_is_that_of_the_tightest_limit(direct_url: str, ledger: Reader) -> None:
    connection = await connect(direct_url, name="test")
    room = await read_room(connection)
    assert room is not None
    assert room.by == "max_connections"
    assert 0 < room.in_use < room.most
    await connection.close()


@pytest.mark.parametrize(("free", "is_short"), [(10, False), (9, True), (0, True), (-5, True)])
def test_a_shortage_is_found(free: int, is_short: bool) -> None:
    room = ConnectionRoom(most=20, by="max_connections", in_use=20 - free)
    assert (find_shortage(room, 10) is not None) is is_short
    assert find_shortage(None, 10) is None


def test_the_figures_of_the_page() -> None:
    """docs/production.md reckons with these."""
    assert worker_connections(Settings()) == 32
    assert worker_connections(Settings(concurrency=4)) == 20
    assert worker_connections(Settings(concurrency=100, handler_connections=10)) == 26
    assert handler_connections(Settings(concurrency=4, handler_connections=10)) == 4
