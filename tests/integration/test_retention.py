"""Retention: explicit, in small steps, and never at the cost of work that is not finished."""

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from gateway.ledger import retention as retention_module
from gateway.ledger.connection import open_pool
from gateway.ledger.deliveries import replay
from gateway.ledger.retention import Pruned, Pruner
from gateway.model import Retention
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import count, make_config, make_route, subscribe, working

DAY = timedelta(days=1)
KEPT = Retention(key=35 * DAY, payload=14 * DAY, dead=90 * DAY)


async def prune(url: str, kept: Retention = KEPT, *, steps: int = 1) -> Pruned:
    pool = await open_pool(url, name="test", size=1, command_timeout_s=10)
    pruner = Pruner({"stripe": kept})
    total = Pruned()
    async with pool.acquire() as connection:
        for _ in range(steps):
            one = await pruner.step(connection)
            total = Pruned(
                keys=total.keys + one.keys,
                payloads=total.payloads + one.payloads,
                dead=total.dead + one.dead,
                looked_at=total.looked_at + one.looked_at,
            )
    await pool.close()
    return total


async def arrange(
    url: str, ledger: Reader, *, status: str, ended: timedelta, received: timedelta | None = None
) -> int:
    """One event whose delivery ended so long ago."""
    now = datetime.now(UTC)
    claim = make_claim("evt_1", received_at=now - (received or ended))
    [answer] = await claim_all(url, [claim])
    await ledger.run(
        "update gateway.deliveries set status = $1, finished_at = $2,"
        " lease_token = case when $1 = 'running' then gen_random_uuid() end",
        status,
        None if status in {"pending", "running"} else now - ended,
    )
    return answer.delivery_ids[0]


@pytest.mark.parametrize("status", ["done", "discarded"])
async def test_a_key_goes_after_its_retention_with_all_that_hangs_on_it(
    status: str, database_url: str, ledger: Reader
) -> None:
    delivery_id = await arrange(database_url, ledger, status=status, ended=36 * DAY)
    await ledger.run(
        "insert into gateway.attempts values ($1, 1, now(), now(), 'done', null)", delivery_id
    )
    assert (await prune(database_url)).keys == 1
    assert await ledger.rows("select from gateway.processed_events") == []
    assert await ledger.rows("select from gateway.deliveries") == []
    assert await ledger.rows("select from gateway.attempts") == []


async def test_a_payload_goes_before_its_key_and_a_late_retry_is_still_a_duplicate(
    database_url: str, ledger: Reader
) -> None:
    await arrange(database_url, ledger, status="done", ended=15 * DAY)
    assert await prune(database_url) == Pruned(payloads=1, looked_at=1)
    event = await ledger.row("select body, headers from gateway.processed_events")
    assert (event["body"], event["headers"]) == (None, None)
    [answer] = await claim_all(database_url, [make_claim("evt_1")])
    assert (answer.verdict, answer.conflict) == ("duplicate", False)


async def test_ages_count_from_the_end_of_the_last_delivery(
    database_url: str, ledger: Reader
) -> None:
    await arrange(database_url, ledger, status="done", received=100 * DAY, ended=1 * DAY)
    assert await prune(database_url) == Pruned(looked_at=1)
    event = await ledger.row("select body from gateway.processed_events")
    assert event["body"] is not None


@pytest.mark.parametrize("status", ["pending", "running", "dead"])
async def test_unfinished_and_dead_work_is_never_pruned(
    status: str, database_url: str, ledger: Reader
) -> None:
    await arrange(database_url, ledger, status=status, received=400 * DAY, ended=89 * DAY)
    assert await prune(database_url, steps=3) == Pruned(looked_at=3)
    assert (await ledger.delivery())["status"] == status


async def test_one_unfinished_delivery_keeps_the_whole_event(
    database_url: str, ledger: Reader
) -> None:
    old = datetime.now(UTC) - 400 * DAY
    claim = make_claim("evt_1", handlers=["a", "b"], received_at=old)
    await claim_all(database_url, [claim])
    await ledger.run(
        "update gateway.deliveries set status = 'done', finished_at = $1 where handler = 'a'", old
    )
    assert await prune(database_url) == Pruned(looked_at=1)
    assert await ledger.statuses() == {"done": 1, "pending": 1}


async def test_dead_letters_past_their_retention_are_given_up_with_an_audit_row(
    database_url: str, ledger: Reader
) -> None:
    delivery_id = await arrange(database_url, ledger, status="dead", ended=91 * DAY)
    assert (await prune(database_url)).dead == 1
    assert (await ledger.delivery())["status"] == "discarded"
    audit = await ledger.row("select * from gateway.audit")
    assert (audit["actor"], audit["action"], audit["delivery_id"]) == (
        "retention",
        "discard",
        delivery_id,
    )


async def test_an_event_without_a_delivery_ages_from_its_receipt(
    database_url: str, ledger: Reader
) -> None:
    old = datetime.now(UTC) - 36 * DAY
    await claim_all(database_url, [make_claim("evt_1", handlers=[], received_at=old)])
    assert (await prune(database_url)).keys == 1


async def test_a_route_that_is_not_configured_is_left_alone(
    database_url: str, ledger: Reader
) -> None:
    old = datetime.now(UTC) - 400 * DAY
    await claim_all(
        database_url, [make_claim("evt_1", route="former", handlers=[], received_at=old)]
    )
    assert await prune(database_url) == Pruned(looked_at=1)


async def test_kept_events_do_not_stop_the_walk(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More waiting events than a step looks at lie before the ones to prune."""
    monkeypatch.setattr(retention_module, "BATCH", 10)
    old = datetime.now(UTC) - 400 * DAY
    waiting = [make_claim(received_at=old) for _ in range(35)]
    over = [make_claim(handlers=[], received_at=old + DAY) for _ in range(5)]
    await claim_all(database_url, [*waiting, *over])
    assert (await prune(database_url, steps=4)).keys == 5
    assert await ledger.statuses() == {"pending": 35}


async def test_a_replay_that_comes_first_saves_its_event_from_a_prune_that_waits(
    database_url: str, ledger: Reader
) -> None:
    delivery_id = await arrange(database_url, ledger, status="done", ended=36 * DAY)
    replaying = await asyncpg.connect(database_url)
    transaction = replaying.transaction()
    await transaction.start()
    await replay(replaying, delivery_id, actor="ann", reason=None)
    assert (await prune(database_url)).keys == 0
    await transaction.commit()
    assert (await prune(database_url)).keys == 0
    assert await ledger.statuses() == {"pending": 1}
    assert await ledger.value("select body from gateway.processed_events") is not None
    await replaying.close()


async def test_a_replay_that_comes_second_finds_its_event_gone(
    database_url: str, ledger: Reader
) -> None:
    delivery_id = await arrange(database_url, ledger, status="done", ended=36 * DAY)
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=10)
    replaying = await asyncpg.connect(database_url)
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await Pruner({"stripe": KEPT}).step(connection)
        late = asyncio.create_task(replay(replaying, delivery_id, actor="ann", reason=None))
        await asyncio.sleep(0.2)
        assert not late.done()
        await transaction.commit()
    with pytest.raises(Exception, match="there is no delivery"):
        await late
    await replaying.close()
    await pool.close()


async def test_only_one_worker_prunes_at_a_time(database_url: str, ledger: Reader) -> None:
    await arrange(database_url, ledger, status="done", ended=36 * DAY)
    other = await asyncpg.connect(database_url)
    async with other.transaction():
        await other.execute("select pg_advisory_xact_lock($1)", retention_module.LOCK)
        assert await prune(database_url) == Pruned()
    assert (await prune(database_url)).keys == 1
    await other.close()


async def test_a_worker_prunes_by_itself(database_url: str, ledger: Reader) -> None:
    await arrange(database_url, ledger, status="done", ended=36 * DAY)
    config = make_config(make_route(retention=KEPT))
    async with working(database_url, subscribe(count), config=config):
        await until(lambda: _is_empty(ledger))


async def _is_empty(ledger: Reader) -> bool:
    return bool(await ledger.value("select count(*) = 0 from gateway.processed_events"))
