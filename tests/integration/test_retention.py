"""Retention: explicit, in small steps, and never at the cost of work that is not finished."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from gateway.base.model import Retention
from gateway.ledger import retention as retention_module
from gateway.ledger.connection import QUERIES, Connection, Pool, Pooled, open_pool
from gateway.ledger.deliveries import replay
from gateway.ledger.ordering import StuckKeys
from gateway.ledger.retention import Pruned, Pruner
from gateway.ledger.statistics import MinuteStats
from gateway.ledger.walk import FIRST_EVENT
from gateway.worker.metrics import WorkerMetrics
from gateway.worker.sweeper import Sweeper
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.partitions import let_pass
from tests.support.waiting import until
from tests.support.workers import count, make_config, make_route, subscribe, working

DAY = timedelta(days=1)
KEPT = Retention(key=35 * DAY, payload=14 * DAY, dead=90 * DAY)
ATTEMPT = (
    "insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome, until)"
    " values ($1, 1, now(), now(), 'done', current_date + 1000)"
)
"""Filed under a day until which nobody wants to keep it."""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Pooled]:
    pool = await open_pool(url, name="test", size=1, command_timeout_s=10)
    async with pool.acquire() as connection:
        yield connection
    await pool.close()


async def prune(url: str, kept: Retention = KEPT, *, steps: int = 1) -> Pruned:
    """Steps of a walk that starts over as soon as it has come to its end."""
    pruner = Pruner({"stripe": kept}, again_after=timedelta())
    total = Pruned()
    async with connected(url) as connection:
        for _ in range(steps):
            total += await pruner.step(connection)
    return total


async def claim_old(url: str, age: timedelta, count: int = 1, **changes: Any) -> None:
    """Events without a delivery, received so long ago."""
    old = datetime.now(UTC) - age
    claims = [make_claim(handlers=[], received_at=old, **changes) for _ in range(count)]
    await claim_all(url, claims)


async def arrange(
    url: str, ledger: Reader, *, status: str, ended: timedelta, received: timedelta | None = None
) -> int:
    """One event whose delivery ended so long ago."""
    now = datetime.now(UTC)
    claim = make_claim("evt_1", received_at=now - (received or ended))
    [answer] = await claim_all(url, [claim])
    await ledger.run(
        "update gateway.deliveries set status = $1::text, finished_at = $2,"
        " lease_token = case when $1::text = 'running' then gen_random_uuid() end",
        status,
        None if status in {"pending", "running"} else now - ended,
    )
    return answer.delivery_ids[0]


@pytest.mark.parametrize("status", ["done", "discarded"])
async def test_a_key_goes_after_its_retention_with_all_that_hangs_on_it(
    status: str, database_url: str, ledger: Reader
) -> None:
    delivery_id = await arrange(database_url, ledger, status=status, ended=36 * DAY)
    await ledger.run(ATTEMPT, delivery_id)
    assert (await prune(database_url)).keys == 1
    assert await ledger.rows("select from gateway.processed_events") == []
    assert await ledger.rows("select from gateway.deliveries") == []
    assert await ledger.rows("select from gateway.attempts") == []


async def test_an_effect_that_nobody_resolved_leaves_an_audit_row(
    database_url: str, ledger: Reader
) -> None:
    delivery_id = await arrange(database_url, ledger, status="done", ended=36 * DAY)
    await ledger.run(
        "insert into gateway.effects (delivery_id, name, status, token, unknown_at)"
        " values ($1, 'receipt', 'unknown', gen_random_uuid(), now() - interval '36 d'),"
        " ($1, 'charge', 'done', gen_random_uuid(), null)",
        delivery_id,
    )
    assert (await prune(database_url)).keys == 1
    assert await ledger.rows("select from gateway.effects") == []
    [noted] = await ledger.rows("select actor, action, effect, event_id from gateway.audit")
    assert tuple(noted.values()) == ("retention", "forget effect", "receipt", "evt_1")


async def test_a_payload_goes_before_its_key_and_a_late_retry_is_still_a_duplicate(
    database_url: str, ledger: Reader
) -> None:
    await arrange(database_url, ledger, status="done", ended=15 * DAY)
    assert await prune(database_url) == Pruned(payloads=1, looked_at=1)
    event = await ledger.row("select body, headers from gateway.events")
    assert (event["body"], event["headers"]) == (None, None)
    [answer] = await claim_all(database_url, [make_claim("evt_1")])
    assert (answer.verdict, answer.conflict) == ("duplicate", False)


async def test_ages_count_from_the_end_of_the_last_delivery(
    database_url: str, ledger: Reader
) -> None:
    await arrange(database_url, ledger, status="done", received=100 * DAY, ended=1 * DAY)
    assert await prune(database_url) == Pruned(looked_at=1)
    event = await ledger.row("select body from gateway.events")
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
    assert await ledger.value("select body from gateway.events") is not None
    await replaying.close()


async def test_a_replay_that_comes_second_finds_its_event_gone(
    database_url: str, ledger: Reader
) -> None:
    delivery_id = await arrange(database_url, ledger, status="done", ended=36 * DAY)
    replaying = await asyncpg.connect(database_url)
    async with connected(database_url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await Pruner({"stripe": KEPT}).step(connection)
        late = asyncio.create_task(replay(replaying, delivery_id, actor="ann", reason=None))
        await until(ledger.is_blocked)
        assert not late.done()
        await transaction.commit()
    with pytest.raises(Exception, match="there is no delivery"):
        await late
    await replaying.close()


@pytest.mark.parametrize("ended", [15 * DAY, 36 * DAY])
async def test_a_replay_that_was_committed_just_before_the_hold_is_seen_under_it(
    ended: timedelta, database_url: str, ledger: Reader
) -> None:
    """The statement that holds events chose them from what it saw when it began."""
    await arrange(database_url, ledger, status="done", ended=ended)
    kept = (["stripe"], [KEPT.key], [KEPT.payload])
    async with connected(database_url) as connection, connection.transaction():
        [row] = await connection.fetch(
            QUERIES["hold_events"], KEPT.payload, *FIRST_EVENT, 10, *kept
        )
        assert (row["walked"], row["held"]) == (1, '{"(0,1)"}')
        await ledger.run("update gateway.deliveries set status = 'pending', finished_at = null")
        [row] = await connection.fetch(QUERIES["prune_events"], row["held"], *kept, 75)
        assert (row["keys"], row["payloads"]) == (0, 0)


async def test_each_route_forgets_at_its_own_age(database_url: str, ledger: Reader) -> None:
    short = Retention(key=4 * DAY, payload=2 * DAY, dead=90 * DAY)
    pruner = Pruner({"stripe": KEPT, "github": short})
    for route in ("stripe", "github"):
        for days in (1, 3, 5, 15, 36):
            await claim_old(database_url, days * DAY, route=route, type=f"after_{days}")
    async with connected(database_url) as connection:
        pruned = await pruner.step(connection)
    assert (pruned.keys, pruned.payloads) == (1 + 3, 1 + 1)
    left = await ledger.rows("select route, type, body is not null as b from gateway.events")
    assert {(row["route"], row["type"], row["b"]) for row in left} == {
        ("stripe", "after_1", True),
        ("stripe", "after_3", True),
        ("stripe", "after_5", True),
        ("stripe", "after_15", False),
        ("github", "after_1", True),
        ("github", "after_3", False),
    }


async def test_a_step_goes_on_where_the_last_one_ended(database_url: str, ledger: Reader) -> None:
    """Most of a ledger has lost its payload and keeps its key: it is not read over and over."""
    pruner = Pruner({"stripe": KEPT})
    await claim_old(database_url, 20 * DAY, 3)
    async with connected(database_url) as connection:
        assert await pruner.step(connection) == Pruned(payloads=3, looked_at=3)
        assert await pruner.step(connection) == Pruned()
        await claim_old(database_url, 15 * DAY, 2)
        assert await pruner.step(connection) == Pruned(payloads=2, looked_at=2)
        await ledger.run(
            "update gateway.processed_events set received_at = received_at - $1::interval", 20 * DAY
        )
        assert await pruner.step(connection) == Pruned(keys=5, looked_at=5)


async def test_what_was_kept_is_looked_at_again_when_the_walk_starts_over(
    database_url: str, ledger: Reader
) -> None:
    await arrange(database_url, ledger, status="pending", received=400 * DAY, ended=DAY)
    at_once, later = (Pruner({"stripe": KEPT}, again_after=after) for after in (0 * DAY, DAY))
    async with connected(database_url) as connection:
        for pruner in (at_once, later):
            assert await pruner.step(connection) == Pruned(looked_at=1)
        await ledger.run(
            "update gateway.deliveries set status = 'done', finished_at = $1",
            datetime.now(UTC) - 36 * DAY,
        )
        assert await later.step(connection) == Pruned()
        assert await at_once.step(connection) == Pruned(keys=1, looked_at=1)


async def test_what_a_failed_step_had_passed_is_walked_again(
    database_url: str, ledger: Reader
) -> None:
    pruner = Pruner({"stripe": KEPT})
    await claim_old(database_url, 36 * DAY)
    await ledger.run(
        "create function fail() returns trigger language plpgsql as"
        " $$ begin raise exception 'no'; end $$;"
        "create trigger fail before delete on gateway.processed_events execute function fail()"
    )
    async with connected(database_url) as connection:
        with pytest.raises(asyncpg.RaiseError):
            await pruner.step(connection)
        await ledger.run("drop trigger fail on gateway.processed_events")
        assert await pruner.step(connection) == Pruned(keys=1, looked_at=1)


async def test_only_a_prune_commits_without_waiting_for_the_disk(
    database_url: str, ledger: Reader
) -> None:
    setting = "select current_setting('synchronous_commit')"
    async with connected(database_url) as connection:
        async with connection.transaction():
            await Pruner({"stripe": KEPT}).step(connection)
            assert await connection.fetchval(setting) == "off"
        assert await connection.fetchval(setting) == "on"


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


async def test_a_worker_goes_on_until_there_is_no_more(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_module, "BATCH", 5)
    await claim_old(database_url, 36 * DAY, 100)
    async with working(database_url, subscribe(count), sweep=timedelta(minutes=30)):
        await until(lambda: _is_empty(ledger))


async def test_a_long_prune_delays_no_sweep(database_url: str, ledger: Reader) -> None:
    delivery_id = await arrange(database_url, ledger, status="done", ended=36 * DAY)
    await ledger.run(ATTEMPT, delivery_id)
    blocking = await asyncpg.connect(database_url)
    async with blocking.transaction():
        await blocking.execute("select from gateway.attempts for update")
        async with working(database_url, subscribe(count)):
            await until(lambda: ledger.value(WAITING))
            seen_at = await until(lambda: ledger.value("select seen_at from gateway.workers"))
            await until(lambda: ledger.value("select seen_at > $1 from gateway.workers", seen_at))
            assert await ledger.value(WAITING)
            assert not await _is_empty(ledger)
    await blocking.close()


WAITING = (
    "select count(*) > 0 from pg_stat_activity"
    " where datname = current_database() and wait_event_type = 'Lock'"
)


class Slow(Pruner):
    """Always finds more, in steps that take a while, until it has taken so many."""

    def __init__(self, steps: int, step_s: float) -> None:
        super().__init__({})
        self.steps, self.step_s = steps, step_s

    async def step(self, connection: Connection | Pooled, *, waits: bool = False) -> Pruned:
        await asyncio.sleep(self.step_s)
        self.steps -= 1
        self.is_behind = self.steps > 0
        return Pruned(keys=1)


async def _nothing() -> None: ...


def _sweeper(pool: Pool, pruner: Pruner, metrics: WorkerMetrics) -> Sweeper:
    return Sweeper(
        pool, pruner=pruner, retention={}, rejected=DAY, handlers=[], turns=StuckKeys(),
        stats=MinuteStats(), metrics=metrics, every=DAY, lease=DAY, worker_id=uuid4(),
        isolated=False,
        renew=_nothing, on_due=lambda: None,
    )  # fmt: skip


async def test_days_that_are_dropped_are_counted(database_url: str, ledger: Reader) -> None:
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=10)
    metrics = WorkerMetrics()
    await claim_all(database_url, [make_claim("evt_1")])
    await let_pass(ledger, 16)
    await _sweeper(pool, Pruner({}), metrics).tend()
    dropped = metrics.registry.get_sample_value("gateway_pruned_total", {"what": "days"})
    assert dropped is not None
    assert dropped >= 1
    await pool.close()


async def test_a_prune_rests_as_long_as_it_works(database_url: str) -> None:
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=10)
    pruner = Slow(steps=5, step_s=0.05)
    sweeper = _sweeper(pool, pruner, WorkerMetrics())
    began_at = time.monotonic()
    await sweeper.prune()
    assert pruner.steps == 0
    assert time.monotonic() - began_at > (5 + 4) * 0.05
    await pool.close()


async def _is_empty(ledger: Reader) -> bool:
    return bool(await ledger.value("select count(*) = 0 from gateway.processed_events"))
