"""Handlers at REPEATABLE READ and SERIALIZABLE, asked for or by a default of the database."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import orjson
import pytest

from gateway import Context, Event
from gateway.config.registry.key_path import KeyPath
from gateway.ledger.claims import Claim
from gateway.ledger.connection import connect
from gateway.processes.work import Worker
from tests.support.ledger import Reader, claim_all, claiming, make_claim
from tests.support.waiting import until
from tests.support.workers import count, subscribe, working

SECOND = timedelta(seconds=1)
SELDOM = timedelta(minutes=5)
HANDLER = "handlers.count"
STRICT = ["repeatable read", "serializable"]


def keyed(event_id: str) -> Claim:
    """Claim an event for an ordered handler; every event has the same ordering key."""
    body = orjson.dumps({"id": event_id, "type": "invoice.paid", "key": "a"})
    return make_claim(event_id, body=body, order_keys={HANDLER: "a"})


async def heartbeats(worker: Worker, count: int) -> None:
    """Wait until the worker has sent so many more heartbeats."""
    runner = worker.runner
    for _ in range(count):
        last = runner.beat_at
        await until(lambda last=last: runner.beat_at != last)


async def all_done(ledger: Reader) -> bool:
    return set(await ledger.statuses()) == {"done"}


@pytest.fixture
async def strict_default(request: pytest.FixtureRequest, ledger: Reader) -> AsyncIterator[str]:
    """Make an isolation level the default of the database."""
    name = await ledger.value("select current_database()")
    await ledger.run(
        f"alter database \"{name}\" set default_transaction_isolation = '{request.param}'"
    )
    yield request.param
    await ledger.run(f'alter database "{name}" reset default_transaction_isolation')


@pytest.mark.parametrize("strict_default", STRICT, indirect=True)
@pytest.mark.parametrize("pooled", ["", "&pooler=transaction"], ids=["direct", "pooler"])
async def test_the_gateways_own_transactions_are_at_read_committed(
    pooled: str, strict_default: str, direct_url: str
) -> None:
    level = "select current_setting('transaction_isolation')"
    connection = await connect(direct_url + pooled, name="test", lock_timeout="7s")
    levels = [await connection.fetchval(level)]
    async with connection.transaction():
        levels.append(await connection.fetchval(level))
    assert levels == ["read committed"] * 2
    async with connection.transaction(isolation="serializable"):
        assert await connection.fetchval(level) == "serializable"
    await connection.close()


@pytest.mark.parametrize("level", STRICT)
async def test_a_strict_handler_that_spans_heartbeats_completes(
    level: str, database_url: str, ledger: Reader
) -> None:
    workers: list[Worker] = []

    async def handler(event: Event, ctx: Context) -> None:
        await ctx.db.execute(f"set transaction isolation level {level}")
        await count(event, ctx)
        await heartbeats(workers[0], 3)

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler), lease=SECOND) as worker:
        workers.append(worker)
        await until(lambda: all_done(ledger))
    assert await ledger.outcomes() == ["done"]
    assert await ledger.effects() == 1


@pytest.mark.parametrize("strict_default", STRICT, indirect=True)
async def test_a_handler_completes_if_the_database_defaults_to_a_strict_level(
    strict_default: str, database_url: str, ledger: Reader
) -> None:
    workers: list[Worker] = []
    levels: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        levels.append(await ctx.db.fetchval("select current_setting('transaction_isolation')"))
        await count(event, ctx)
        await heartbeats(workers[0], 3)

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler), lease=SECOND) as worker:
        workers.append(worker)
        await until(lambda: all_done(ledger))
    assert levels == [strict_default]  # the handler's own transaction keeps the user's default
    assert await ledger.outcomes() == ["done"]
    assert await ledger.effects() == 1


@pytest.mark.parametrize("level", STRICT)
async def test_a_successor_that_arrives_during_a_strict_run_starts_without_the_sweep(
    level: str, database_url: str, ledger: Reader
) -> None:
    ran: list[str] = []

    async with claiming(database_url) as claimer:

        async def handler(event: Event, ctx: Context) -> None:
            await ctx.db.execute(f"set transaction isolation level {level}")
            await count(event, ctx)  # takes the snapshot
            if event.id == "evt_1":
                await claimer.claim(keyed("evt_2"))
            ran.append(event.id)

        subscription = subscribe(handler, order_by=KeyPath.parse("key"))
        await claimer.claim(keyed("evt_1"))
        async with working(database_url, subscription, sweep=SELDOM, lease=SELDOM):
            await until(lambda: len(ran) == 2)
            await until(lambda: all_done(ledger))
    assert ran == ["evt_1", "evt_2"]


@pytest.mark.parametrize("strict_default", STRICT, indirect=True)
async def test_workers_and_claims_hold_up_under_a_strict_default(
    strict_default: str, database_url: str, ledger: Reader
) -> None:
    """Two workers, ordered and unordered deliveries: no loss, one effect each."""

    async def handler(event: Event, ctx: Context) -> None:
        await count(event, ctx)
        await asyncio.sleep(0.01)

    claims: list[Any] = [make_claim(f"evt_{n}") for n in range(40)]
    claims += [keyed(f"key_{n}") for n in range(10)]
    subscription = subscribe(handler, order_by=KeyPath.parse("key"))
    async with working(database_url, subscription), working(database_url, subscription):
        await claim_all(database_url, claims)
        await until(lambda: _done(ledger, 50))
    assert await ledger.effects() == 50
    assert set(await ledger.outcomes()) <= {"done", "lost"}  # lost: handlers at the strict level


async def _done(ledger: Reader, count: int) -> bool:
    return await ledger.statuses() == {"done": count}
