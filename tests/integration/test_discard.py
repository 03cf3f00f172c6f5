"""Discarding a delivery: what waits or is dead is given up, and leaves an audit row."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from gateway.base.errors import CommandFailed, TransitionRefused
from gateway.base.model import Outcome, Retention, Status
from gateway.ledger.connection import Connection, open_pool
from gateway.ledger.deliveries import DONE, Settlement, discard, lease_due, replay, settle
from gateway.ledger.retention import Pruned, Pruner
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.pgbouncer import needs_own_session
from tests.support.waiting import until

HANDLERS = [("stripe", "handlers.count")]
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
DEAD = Settlement(status=Status.DEAD, outcome=Outcome.DEAD, error="ValueError: boom")


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def reach(url: str, connection: Connection, status: Status) -> int:
    """A delivery that came to this state by its own moves."""
    [answer] = await claim_all(url, [make_claim("evt_1")])
    [delivery_id] = answer.delivery_ids
    if status in {Status.RUNNING, Status.DONE, Status.DEAD}:
        [lease] = await lease_due(connection, 1, HANDLERS, HOUR)
        if status is not Status.RUNNING:
            await settle(connection, lease, DONE if status is Status.DONE else DEAD)
    elif status is Status.DISCARDED:
        await discard(connection, delivery_id, actor="bob", reason=None)
    return delivery_id


@pytest.mark.parametrize("status", [Status.PENDING, Status.DEAD])
async def test_what_waits_or_is_dead_is_discarded_with_its_audit_row_in_one_commit(
    status: Status, database_url: str, connection: Connection, ledger: Reader
) -> None:
    delivery_id = await reach(database_url, connection, status)
    before = await ledger.delivery()
    await discard(connection, delivery_id, actor="ann", reason="a test order")
    after = await ledger.delivery()
    assert (after["status"], after["error"]) == ("discarded", before["error"])
    assert (after["attempts"], after["runs"]) == (before["attempts"], before["runs"])
    assert after["finished_at"] is not None
    audit = await ledger.row("select *, xmin::text as version from gateway.audit")
    assert (audit["actor"], audit["action"], audit["reason"]) == ("ann", "discard", "a test order")
    assert (audit["delivery_id"], audit["route"], audit["event_id"]) == (
        delivery_id,
        "stripe",
        "evt_1",
    )
    assert audit["version"] == await ledger.value("select xmin::text from gateway.deliveries")


@pytest.mark.parametrize("status", [Status.RUNNING, Status.DONE, Status.DISCARDED])
async def test_discard_of_what_runs_or_has_ended_is_refused_and_leaves_nothing(
    status: Status, database_url: str, connection: Connection, ledger: Reader
) -> None:
    delivery_id = await reach(database_url, connection, status)
    before = await ledger.delivery(), await ledger.rows("select * from gateway.audit")
    with pytest.raises(TransitionRefused, match=f"delivery {delivery_id} is {status}: only"):
        await discard(connection, delivery_id, actor="ann", reason=None)
    assert (await ledger.delivery(), await ledger.rows("select * from gateway.audit")) == before


async def test_discard_of_no_delivery_is_a_failure(connection: Connection) -> None:
    with pytest.raises(CommandFailed, match="there is no delivery 7"):
        await discard(connection, 7, actor="ann", reason=None)


async def test_what_was_discarded_is_not_leased_until_it_is_replayed(
    database_url: str, connection: Connection
) -> None:
    delivery_id = await reach(database_url, connection, Status.DISCARDED)
    assert await lease_due(connection, 1, HANDLERS, HOUR) == []
    await replay(connection, delivery_id, actor="ann", reason=None)
    [lease] = await lease_due(connection, 1, HANDLERS, HOUR)
    assert lease.delivery_id == delivery_id


@needs_own_session
async def test_a_discard_that_waited_for_a_lease_is_refused(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    """The row is locked while it is leased: the discard must not act on what it saw before."""
    delivery_id = await reach(database_url, connection, Status.PENDING)
    worker = await asyncpg.connect(database_url)
    async with worker.transaction():
        assert len(await lease_due(worker, 1, HANDLERS, HOUR)) == 1
        late = asyncio.create_task(discard(connection, delivery_id, actor="ann", reason=None))
        await until(lambda: waits(ledger, connection))
    with pytest.raises(TransitionRefused, match="is running"):
        await late
    await worker.close()
    assert await ledger.statuses() == {"running": 1}
    assert await ledger.rows("select * from gateway.audit") == []


async def test_a_lease_passes_over_what_is_being_discarded(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    delivery_id = await reach(database_url, connection, Status.PENDING)
    worker = await asyncpg.connect(database_url)
    async with connection.transaction():
        await discard(connection, delivery_id, actor="ann", reason=None)
        assert await lease_due(worker, 1, HANDLERS, HOUR) == []
    await worker.close()
    assert await ledger.statuses() == {"discarded": 1}


async def waits(ledger: Reader, connection: Connection) -> bool:
    """Whether this connection waits for another's transaction."""
    blockers = await ledger.value("select pg_blocking_pids($1)", connection.get_server_pid())
    return bool(blockers)


async def test_the_age_of_an_event_counts_from_its_discard(
    database_url: str, ledger: Reader
) -> None:
    """Whoever discards by mistake has the whole retention to notice."""
    old = datetime.now(UTC) - 400 * DAY
    [answer] = await claim_all(database_url, [make_claim("evt_1", received_at=old)])
    kept = Retention(key=35 * DAY, payload=14 * DAY, dead=90 * DAY)
    pruner = Pruner({"stripe": kept}, again_after=timedelta())
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=10)
    async with pool.acquire() as connection:
        await discard(connection, answer.delivery_ids[0], actor="ann", reason=None)
        assert await pruner.step(connection) == Pruned(looked_at=1)
        await ledger.run(
            "update gateway.deliveries set finished_at = finished_at - $1::interval", 36 * DAY
        )
        assert await pruner.step(connection) == Pruned(keys=1, looked_at=1)
    await pool.close()
