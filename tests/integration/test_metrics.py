"""The gauges of the ledger: true, bounded, and harmless to a ledger that is in trouble."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
import pytest
from prometheus_client import REGISTRY, Counter
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway import Context, Event
from gateway.base.model import Status
from gateway.ledger import health as ledger_health
from gateway.ledger.deliveries import settle
from gateway.ledger.health import read_health
from gateway.ledger.metrics import GAUGES
from gateway.processes.work import Worker
from gateway.receive.metrics import Metrics
from tests.support.away import nobody_gets_in
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.scraping import Scraped
from tests.support.waiting import until
from tests.support.workers import count, subscribe, working

NOW: Final = datetime.now(UTC)
LATELY: Final = timedelta(seconds=30)
FILL: Final = """
insert into gateway.processed_events (route, event_id, provider, type, received_at, digest)
select 'stripe', 'evt_' || n, 'stripe', 'invoice.paid', now(), sha256(n::text::bytea)
from generate_series(1, 40) n;
insert into gateway.deliveries (route, event_id, handler, status, due_at, order_key, finished_at,
                                lease_token, leased_at, leased_until)
select 'stripe', 'evt_' || n, case when n % 2 = 0 then 'handlers.a' else 'handlers.b' end,
       case when n <= 20 then 'pending' when n <= 30 then 'dead' when n <= 34 then 'running'
            else 'done' end,
       case when n <= 8 then now() - interval '90 s' when n <= 14 then now() + interval '1 h'
            when n <= 20 then 'infinity' else now() end,
       case when n between 15 and 20 then 'key_' || n end,
       case when n between 21 and 30 then now() end,
       case when n between 31 and 34 then gen_random_uuid() end, now(),
       case when n between 31 and 34 then now() + interval '1 h' end
from generate_series(1, 40) n;
update gateway.deliveries set workers_lost = 2
where event_id in ('evt_2', 'evt_4', 'evt_5', 'evt_32');
insert into gateway.pauses (route, handler, actor) values ('stripe', '', 'ann'), ('x', 'h', 'ann');
insert into gateway.workers (id, host, pid, handlers, version)
values (gen_random_uuid(), 'here', 1, array['stripe handlers.a'], '1');
insert into gateway.reconciliations (route, actor, since, until, dry_run, status)
values ('stripe', 'schedule', now(), now(), false, 'done'),
       ('stripe', 'schedule', now(), now(), false, 'failed');
insert into gateway.gaps (route, event_id, run_id, type, handle, handled_at, occurred_at, is_first,
                          status, closed_at)
select 'stripe', 'gap_' || n, 1, 'x', 'h', now(), now(), true,
       case when n <= 3 then 'missing' when n <= 5 then 'unrecoverable' else 'recovered' end,
       case when n > 3 then now() end
from generate_series(1, 9) n;
"""


@pytest.fixture
async def filled(database_url: str) -> str:
    connection = await asyncpg.connect(database_url)
    await connection.execute(FILL)
    await connection.close()
    return database_url


async def told(metrics: Metrics) -> Scraped:
    return Scraped((await metrics.show()).decode())


def watching(url: str) -> Metrics:
    metrics = Metrics()
    metrics.watch_ledger(url, lately=LATELY)
    return metrics


async def test_the_gauges_tell_what_the_ledger_holds(filled: str) -> None:
    scraped = await told(watching(filled))
    a = {"route": "stripe", "handler": "handlers.a"}
    assert scraped.values("gateway_ledger_up") == [1]
    assert scraped.values("gateway_workers") == [1]
    for state, n in (("due", 4), ("later", 3), ("held", 3)):
        assert scraped.values("gateway_backlog_deliveries", **a, state=state) == [n]
    assert 90 <= scraped.sum("gateway_backlog_oldest_seconds", **a) < 150
    assert scraped.values("gateway_suspect_deliveries", **a) == [2]  # those that wait
    assert scraped.values("gateway_dead_deliveries", **a) == [5]
    assert scraped.values("gateway_running_deliveries", **a) == [2]
    assert scraped.values("gateway_paused", route="stripe", handler="") == [1]
    assert scraped.values("gateway_paused", route="x", handler="h") == [1]
    assert scraped.values("gateway_orphaned") == [1]
    assert scraped.values("gateway_orphaned", handler="handlers.b") == [1]
    for status, n in (("missing", 3), ("unrecoverable", 2), ("recovered", 4)):
        assert scraped.values("gateway_reconcile_gaps", route="stripe", status=status) == [n]
    assert scraped.values("gateway_reconcile_failed", route="stripe") == [1]
    assert scraped.sum("gateway_ledger_connections") >= 1
    assert scraped.sum("gateway_ledger_schema") == float(
        next(s for s in scraped.samples if s.name == "gateway_build_info").labels["schema"]
    )


async def test_no_more_is_counted_than_its_bound(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_health, "MOST_COUNTED", 2)
    monkeypatch.setattr(ledger_health, "MOST_HANDLERS", 1)
    monkeypatch.setattr("gateway.ledger.metrics.MOST_HANDLERS", 1)
    connection = await asyncpg.connect(filled)
    health = await read_health(connection, LATELY)
    await connection.close()
    [found] = health.backlogs.values()
    assert found == replace(found, due=2, later=2, held=2, dead=2, most=2)
    assert sum(health.running.values()) == 2
    assert sum(health.gaps.values()) == 4
    [paused] = [read for name, _, _, read in GAUGES if name == "gateway_paused"]
    assert len(list(paused(health))) == 1


def test_with_many_handlers_fewer_of_each_are_counted() -> None:
    assert ledger_health.most_of(0) == ledger_health.most_of(2) == 10_000
    assert ledger_health.most_of(10) == 2_000
    assert ledger_health.most_of(200) == 100


async def test_a_ledger_that_is_away_is_told_with_what_was_known(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.telemetry.metrics.ASK_EVERY_S", 0)
    metrics = watching(filled)
    assert (await told(metrics)).values("gateway_ledger_up") == [1]
    async with nobody_gets_in(filled):
        metrics._stale_at = 0
        away = await told(metrics)
        assert away.values("gateway_ledger_up") == [0]
        assert away.sum("gateway_dead_deliveries") == 10
        assert away.sum("gateway_ledger_age_seconds") > 0
        monkeypatch.setattr("gateway.ledger.metrics.KNOWN_FOR_S", 0)
        metrics._stale_at = 0
        later = await told(metrics)
        assert later.values("gateway_ledger_up") == [0]
        assert later.values("gateway_dead_deliveries") == []
    monkeypatch.setattr("gateway.ledger.metrics.KNOWN_FOR_S", 60)
    metrics._stale_at = 0
    assert (await told(metrics)).values("gateway_ledger_up") == [1]


async def test_a_flood_of_scrapes_is_one_look(filled: str, ledger: Reader) -> None:
    metrics = watching(filled)
    await metrics.show()
    await ledger.value(
        "update gateway.deliveries set status = 'done' where status = 'dead' returning 1"
    )
    for _ in range(50):
        metrics._stale_at = 0
        assert (await told(metrics)).sum("gateway_dead_deliveries") == 10


async def repaired(worker: Worker, kind: str) -> float:
    worker.metrics._stale_at = 0
    return Scraped((await worker.metrics.show()).decode()).sum("gateway_repairs_total", kind=kind)


async def test_a_delivery_of_which_nobody_told_is_a_near_miss(database_url: str) -> None:
    """This worker has no queue at all."""
    async with working(database_url, subscribe(count)) as worker:
        await until(lambda: worker.runner.asked_at)
        await claim_all(database_url, [make_claim(received_at=NOW - timedelta(seconds=9))])
        await until(lambda: repaired(worker, "wake_up_missed"))
        told = Scraped((await worker.metrics.show()).decode())
        assert told.sum("gateway_leased_deliveries_total", source="ledger") == 1
        assert await repaired(worker, "wake_up_missed") == 1


async def test_a_run_that_finds_its_lease_gone_is_a_near_miss(
    database_url: str, ledger: Reader
) -> None:
    async def steal(event: Event, ctx: Context) -> None:
        await ledger.value(
            "update gateway.deliveries set lease_token = gen_random_uuid() returning 1"
        )

    async with working(database_url, subscribe(steal)) as worker:
        await claim_all(database_url, [make_claim()])
        await until(lambda: repaired(worker, "fenced"))


async def test_a_lease_that_is_taken_back_is_a_near_miss(database_url: str, ledger: Reader) -> None:
    await claim_all(database_url, [make_claim()])
    await ledger.value(
        "update gateway.deliveries set status = 'running', runs = 1, losses = 9, workers_lost = 11,"
        " lease_token = gen_random_uuid(), leased_at = now(), leased_until = now() - interval '1 h'"
        " returning 1"
    )
    async with working(database_url, subscribe(count)) as worker:
        await until(lambda: repaired(worker, "lease_expired"))
        told = Scraped((await worker.metrics.show()).decode())
        assert told.sum("gateway_attempts_total", outcome="lost") == 1
        assert told.sum("gateway_dead_letters_total", handler="handlers.count") == 1


async def test_a_turn_that_nobody_gave_is_a_near_miss(database_url: str, ledger: Reader) -> None:
    await claim_all(database_url, [make_claim(order_keys={"handlers.count": "key"})])
    await ledger.value("update gateway.deliveries set due_at = 'infinity' returning 1")
    async with working(database_url, subscribe(count)) as worker:
        await until(lambda: repaired(worker, "turn_given"))


async def test_a_settlement_that_was_sent_twice_is_a_near_miss(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([ConnectionResetError("gone")])

    async def settle_again(*arguments: Any) -> Status:
        for failure in failures:
            raise failure
        return await settle(*arguments)

    async def nothing(event: Event, ctx: Context) -> None: ...

    monkeypatch.setattr("gateway.worker.execution.settle", settle_again)
    async with working(database_url, subscribe(nothing)) as worker:
        await claim_all(database_url, [make_claim()])
        await until(lambda: repaired(worker, "settle_repeated"))


async def test_what_handlers_count_themselves_is_told_by_their_worker(database_url: str) -> None:
    counter = Counter("orders_fulfilled", "Of a test.", ["kind"])

    async def fulfil(event: Event, ctx: Context) -> None:
        counter.labels("paid").inc()

    class Breaking(Collector):
        is_broken = False

        def collect(self) -> list[Metric]:
            if self.is_broken:
                raise RuntimeError("no")
            return []

    breaking = Breaking()
    REGISTRY.register(breaking)
    try:
        async with working(database_url, subscribe(fulfil)) as worker:
            await claim_all(database_url, [make_claim()])

            async def told_of() -> Scraped:
                worker.metrics._stale_at = 0
                return Scraped((await worker.metrics.show()).decode())

            await until(lambda: counter.labels("paid")._value.get())
            told = await told_of()
            assert told.values("orders_fulfilled_total", kind="paid") == [1]
            assert len(told.values("process_cpu_seconds_total")) == 1
            assert not [name for name in told.names() if name.startswith("python_")]
            breaking.is_broken = True
            assert "gateway_attempts_total" in (await told_of()).names()
    finally:
        REGISTRY.unregister(counter)
        REGISTRY.unregister(breaking)
