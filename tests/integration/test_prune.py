"""`gateway prune`: the sweep's own steps, on order, to the end, and what it does not touch."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from gateway.base.model import Retention
from gateway.ledger import retention as retention_module
from gateway.ledger import walk as walk_module
from gateway.ledger.connection import QUERIES, Connection
from gateway.ledger.retention import LOCK, PruneCursor, Pruned, Pruner
from gateway.operations.stored_data import count_to_prune, list_left_alone, prune
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until

DAY = timedelta(days=1)
KEPT = {
    "stripe": Retention(key=35 * DAY, payload=14 * DAY, dead=90 * DAY),
    "github": Retention(key=8 * DAY, payload=8 * DAY, dead=20 * DAY),
}
AUDIT = 400 * DAY


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def claim_old(url: str, age: timedelta, count: int, **changes: Any) -> None:
    """Events without a delivery, received so long ago."""
    old = datetime.now(UTC) - age
    await claim_all(
        url, [make_claim(handlers=[], received_at=old, **changes) for _ in range(count)]
    )


async def kill(ledger: Reader, age: timedelta) -> None:
    """Makes dead letters of what waits."""
    await ledger.run(
        "update gateway.deliveries set status = 'dead', finished_at = now() - $1::interval"
        " where status = 'pending'",
        age,
    )


async def to_the_end(
    connection: Connection, *, dry_run: bool = False, kept: dict[str, Retention] = KEPT
) -> tuple[Pruned, int]:
    """Piece by piece; also how many there were."""
    total, place, pieces = Pruned(), None, 0
    while True:
        work = count_to_prune if dry_run else prune
        pruned, place = await work(connection, kept, AUDIT, place)
        total, pieces = total + pruned, pieces + 1
        if place is None:
            return total, pieces


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "BATCH", 3)
    monkeypatch.setattr(walk_module, "PIECE_S", 0.0)


@pytest.mark.usefixtures("small_steps")
async def test_a_prune_goes_to_the_end_piece_by_piece_and_a_dry_run_says_so_before(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    await claim_old(database_url, 36 * DAY, 10)
    await claim_old(database_url, 20 * DAY, 7)
    await claim_old(database_url, 9 * DAY, 4, route="github")
    await claim_old(database_url, DAY, 5)
    await claim_all(database_url, [make_claim(route=r) for r in ["github"] * 5 + ["stripe"] * 4])
    await kill(ledger, 91 * DAY)
    counted, pieces = await to_the_end(connection, dry_run=True)
    assert pieces > 5
    expected = (14, 7, 9)
    assert (counted.keys, counted.payloads, counted.dead) == expected
    assert len(await ledger.rows("select from gateway.processed_events")) == 35
    pruned, pieces = await to_the_end(connection)
    assert pieces > 5
    assert (pruned.keys, pruned.payloads, pruned.dead) == expected
    again, _ = await to_the_end(connection)
    assert (again.keys, again.payloads, again.dead) == (0, 0, 0)
    assert await ledger.statuses() == {"discarded": 9}


@pytest.mark.parametrize("status", ["pending", "running", "dead"])
async def test_what_is_not_finished_is_neither_pruned_nor_counted(
    status: str, database_url: str, connection: Connection, ledger: Reader
) -> None:
    old = datetime.now(UTC) - 1000 * DAY
    await claim_all(database_url, [make_claim("evt_1", received_at=old)])
    await ledger.run(
        "update gateway.deliveries set status = $1::text, finished_at = now() - interval '80 d',"
        " lease_token = case when $1::text = 'running' then gen_random_uuid() end",
        status,
    )
    for dry_run in (True, False):
        pruned, _ = await to_the_end(connection, dry_run=dry_run)
        assert (pruned.keys, pruned.payloads, pruned.dead) == (0, 0, 0)
    assert (await ledger.delivery())["status"] == status


async def test_a_route_that_is_not_configured_is_kept_and_named(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    await claim_old(database_url, 1000 * DAY, 2, route="old_shop")
    await claim_all(database_url, [make_claim(route="old_shop")])
    await kill(ledger, 1000 * DAY)
    await claim_old(database_url, 36 * DAY, 1)
    pruned, _ = await to_the_end(connection)
    assert (pruned.keys, pruned.dead) == (1, 0)
    assert len(await ledger.rows("select from gateway.processed_events")) == 3
    assert await list_left_alone(connection, KEPT) == ["old_shop"]
    nothing, _ = await to_the_end(connection, kept={})
    assert nothing == Pruned()


async def test_a_prune_waits_for_that_of_a_worker(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    """One that gave way would say that there is nothing to forget."""
    await claim_old(database_url, 36 * DAY, 3)
    worker = await asyncpg.connect(database_url)
    async with worker.transaction():
        assert await worker.fetchval(QUERIES["start_prune"], LOCK)
        pruning = asyncio.create_task(prune(connection, KEPT, AUDIT, None))
        await until(lambda: ledger.value("select exists (select from pg_locks where not granted)"))
        assert len(await ledger.rows("select from gateway.processed_events")) == 3
    pruned, _ = await pruning
    assert pruned.keys == 3
    await worker.close()


async def test_the_audit_is_forgotten_a_day_at_a_time_and_says_so(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    await ledger.run(
        "insert into gateway.audit (actor, action, at)"
        " select 'ann', 'replay', now() - n * interval '12 h' from generate_series(1, 850) n"
    )
    await ledger.run(
        "insert into gateway.bulk_orders"
        " (action, filter, actor, began_at, total, mark_at, status, stepped_at)"
        " select 'replay', '{}', 'ann', now(), 1, now(), 'done', now() - n * interval '1 d'"
        " from unnest(array[399, 401]) n"
    )
    counted, _ = await to_the_end(connection, dry_run=True)
    pruned, _ = await to_the_end(connection)
    assert (counted.audit, pruned.audit) == (51, 51)
    last = await ledger.row("select * from gateway.audit where action = 'prune'")
    assert last["actor"] == "retention"
    assert last["reason"] == "51 rows of the audit log, older than 400 days"
    assert await ledger.value("select min(at) > now() - $1::interval from gateway.audit", AUDIT)
    assert len(await ledger.rows("select from gateway.bulk_orders")) == 1
    await ledger.run(
        "insert into gateway.audit (actor, action, at) select 'ann', 'x', now() - $1::interval",
        AUDIT + DAY / 2,
    )
    counted, _ = await to_the_end(connection, dry_run=True)
    pruned, _ = await to_the_end(connection)
    assert (counted.audit, pruned.audit) == (0, 0)  # the row that says so would outweigh it


async def test_the_audit_is_kept_for_as_long_as_any_key(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    await ledger.run(
        "insert into gateway.audit (actor, action, at)"
        " select 'ann', 'erase', now() - n * interval '1 d' from unnest(array[450, 600]) n"
    )
    long = {"stripe": Retention(key=500 * DAY, payload=DAY, dead=DAY)}
    pruned, _ = await to_the_end(connection, kept=long)
    assert pruned.audit == 1


async def test_the_sweep_goes_on_where_it_was_and_looks_at_each_routes_dead_in_turn(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim(route=route) for route in KEPT])
    await kill(ledger, 91 * DAY)
    pruner = Pruner(KEPT)
    assert [(await pruner.step(connection)).dead for _ in range(3)] == [1, 1, 0]
    assert pruner.is_through
    assert pruner.cursor == PruneCursor(events=pruner.cursor.events, turn=1, idle=3)
