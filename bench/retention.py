"""What an event takes on disk, what many tables cost, and a month dropped under steady load."""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import asyncpg

from bench import claims
from bench.backlog import leave_deliveries
from bench.claims import HANDLER
from bench.database import Database
from bench.environment import Environment
from bench.figures import Results, Sample, round_ratios, summarize_all
from bench.generator import OVERTIME_S, start_open_loop, warm_up
from bench.ingest import REQUEST_BYTES
from bench.plan import Plan
from bench.processes import Process
from bench.processing import watch_effects
from bench.requests import TYPE, stripe_body, write_stripe
from gateway.ledger.connection import PREPARED_ONCE
from gateway.ledger.deliveries import DONE, lease_due, settle
from gateway.ledger.partitions import UNHURRIED

SPAN_DAYS, DROPPED_DAYS = 90, 30
RATE = 300
"""Requests a second while days are dropped: steady, and far from what it can take."""
CHUNK = 100_000
LEASED = 4_000
MANY_DAYS = 50
CLAIM_S = 3.0
WAL = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
SIZES = """
select coalesce(p.relname, c.relname) as name, sum(pg_total_relation_size(c.oid))::bigint as bytes
from pg_class c
left join pg_inherits i on i.inhrelid = c.oid
left join pg_class p on p.oid = i.inhparent
where c.relnamespace = 'gateway'::regnamespace and c.relkind = 'r'
  and coalesce(p.relname, c.relname) in ('processed_events', 'payloads', 'deliveries', 'attempts')
group by 1
order by 2 desc
"""
ROWS = """
select coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint
from gateway.partitions p join pg_class c on c.oid = format('gateway.%I', p.name)::regclass
where p.day <= (now() at time zone 'UTC')::date
"""
MAKE_DAY = (
    "create table if not exists gateway.{parent}_{day:%Y%m%d} partition of gateway.{parent}"
    " for values from ('{day}') to ('{after}')"
)
FILL = """
with past as materialized (
    select n, now() - $4::interval + n * ($4::interval / $3::bigint) as at,
           'evt_' || md5('retained' || n) as event_id
    from generate_series($1::bigint, $2::bigint) as n
), events as (
    insert into gateway.processed_events
        (route, event_id, provider, type, livemode, occurred_at, received_at, digest, payload_id,
         payload_until)
    select 'stripe', event_id, 'stripe', $5, false, at, at, sha256(n::text::bytea), -n,
           gateway.forget_on(at, '14 days')
    from past
), filed as (
    insert into gateway.payloads (id, until, route, event_id, headers, body)
    select -n, gateway.forget_on(at, '14 days'), 'stripe', event_id, '{"host": "bench"}', $6::bytea
    from past
    where gateway.forget_on(at, '14 days') > (now() at time zone 'UTC')::date - $7::integer
), settled as (
    insert into gateway.deliveries
        (id, route, event_id, handler, status, attempts, runs, due_at, created_at, finished_at)
    overriding system value
    select -n, 'stripe', event_id, $8, 'done', 1, 1, at, at, at + interval '5 ms'
    from past
)
insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome, until)
select -n, 1, at, at + interval '5 ms', 'done', gateway.forget_on(at, '35 days')
from past
where gateway.forget_on(at, '35 days') > (now() at time zone 'UTC')::date - $7::integer
"""


def run(environment: Environment, plan: Plan) -> Results:
    return {
        "sizes": measure_sizes(environment, plan.size_events),
        "tables": measure_tables(environment, plan.tables_rounds),
        "drop": measure_drop(environment, plan),
    }


def measure_sizes(environment: Environment, count: int) -> Results:
    """Events of 2.8 KB, claimed as `serve` does and run by a worker, one handler each."""
    database = environment.database
    environment.reset()
    before = database.fetchval(WAL)
    leave_deliveries(environment, count)
    claimed = database.fetchval(WAL)
    with environment.worker() as worker:
        watch_effects(environment, worker, count)
    done = database.fetchval(WAL)
    database.execute("vacuum")
    disk = {row["name"]: row["bytes"] / count for row in database.fetch(SIZES)}
    wal = {"accepted": (claimed - before) / count, "processed": (done - claimed) / count}
    print(f"  disk {disk}\n  WAL {wal}", flush=True)
    return {"events": count, "disk": disk, "wal": wal}


def measure_tables(environment: Environment, rounds: int) -> Results:
    """Claims, leases and settlements with the tables of few days and of many, by turns."""
    many = environment.add_database("many")
    try:
        for parent in ("payloads", "attempts"):
            _make_days(many, parent, _days(1, MANY_DAYS))
        samples: dict[str, list[Sample]] = {"few": [], "many": []}
        for number in range(rounds):
            for name, database in (("few", environment.database), ("many", many)):
                database.empty()
                sample = asyncio.run(claims.measure(database.url, CLAIM_S))
                sample |= asyncio.run(_lease_and_settle(database.url, LEASED))
                samples[name].append(sample)
                print(
                    f"  {name} days {number + 1}/{rounds}  claims {sample['per_second']:,.0f}/s"
                    f"  leases {sample['leases_per_second']:,.0f}/s"
                    f"  settlements {sample['settled_per_second']:,.0f}/s",
                    flush=True,
                )
    finally:
        many.close()
        environment.database.execute('drop database "many" with (force)')
    figures = {
        "claims": "per_second",
        "leases": "leases_per_second",
        "settlements": "settled_per_second",
    }
    return {
        "samples": samples,
        "summary": summarize_all(samples),
        "ratios": {
            name: round_ratios(samples, "many", "few", figure) for name, figure in figures.items()
        },
    }


def measure_drop(environment: Environment, plan: Plan) -> Results:
    """Acknowledgements at a steady rate, by turns with and without days that are dropped at a
    worker's pace; then the others of the month, at once."""
    samples: dict[str, list[Sample]] = {"alone": [], "dropping": []}
    with _ledger(environment, plan.retention_events) as database:
        size = database.fetchval("select pg_database_size(current_database())")
        rows = database.fetchval(ROWS)
        with environment.serve(GATEWAY_DATABASE_URL=database.url) as server:
            server.wait_ready()
            warm_up(server.port)
            for number in range(plan.retention_rounds):
                for name, days in (("alone", 0), ("dropping", plan.retention_days)):
                    sample = _acknowledge(environment, plan, database, server, days)
                    samples[name].append(sample)
                    print(
                        f"  {name} {number + 1}/{plan.retention_rounds}"
                        f"  p99 {sample['p99_ms']:.1f} ms  max {sample['max_ms']:.0f} ms"
                        f"  {sample['dropped']:.0f} tables in {sample['drop_seconds']:.2f} s",
                        flush=True,
                    )
        others = _drop(environment, database, SPAN_DAYS, math.inf)
        print(f"  {others['dropped']} others in {others['drop_seconds']:.2f} s", flush=True)
        left = database.fetchval(ROWS)
    drops = [*samples["dropping"], others]
    return {
        "events": plan.retention_events,
        "rate": RATE,
        "ledger_bytes": size,
        "days": sum(sample["dropped"] for sample in drops),
        "rows": rows - left,
        "seconds": sum(sample["drop_seconds"] for sample in drops),
        "samples": samples,
        "summary": summarize_all(samples),
        "p99_ratios": round_ratios(samples, "dropping", "alone", "p99_ms"),
    }


def _acknowledge(
    environment: Environment, plan: Plan, database: Database, server: Process, days: int
) -> Sample:
    seconds = plan.retention_seconds
    count = RATE * seconds + 1
    dropped = {"drop_seconds": 0.0, "dropped": 0.0}
    with environment.requests_file(count * REQUEST_BYTES) as file:
        write_stripe(file, count)
        with start_open_loop(server.port, file, rate=RATE, seconds=seconds) as load:
            time.sleep(1)
            if days:
                dropped = _drop(environment, database, days, UNHURRIED)
            sample = load.figures(seconds + OVERTIME_S)
    return sample | dropped


def _drop(environment: Environment, database: Database, days: int, bytes_per_s: float) -> Sample:
    with environment.module("bench.days", database.url, str(days), str(bytes_per_s)) as process:
        found = process.figures(600)
    return {"drop_seconds": found["seconds"], "dropped": found["dropped"]}


async def _lease_and_settle(url: str, count: int) -> Sample:
    """On one connection, with plans that are made once, as a worker leases."""
    connection = await asyncpg.connect(url, server_settings=PREPARED_ONCE)
    await connection.execute("set synchronous_commit = off")
    leased = settled = done = 0.0
    while done < count:
        began = time.perf_counter()
        leases = await lease_due(connection, 32, [("stripe", HANDLER)], timedelta(minutes=5))
        leased += time.perf_counter() - began
        began = time.perf_counter()
        for lease in leases:
            await settle(connection, lease, DONE)
        settled += time.perf_counter() - began
        done += len(leases)
        if not leases:
            break
    await connection.close()
    return {"leases_per_second": done / leased, "settled_per_second": done / settled}


def _days(first: int, last: int) -> list[date]:
    """From today."""
    today = datetime.now(UTC).date()
    return [today + timedelta(days=n) for n in range(first, last + 1)]


def _make_days(database: Database, parent: str, days: list[date]) -> None:
    for day in days:
        after = day + timedelta(days=1)
        database.execute(MAKE_DAY.format(parent=parent, day=day, after=after))


@contextlib.contextmanager
def _ledger(environment: Environment, count: int) -> Iterator[Database]:
    """Events of three months, of which the bodies of those are there that are not long forgotten,
    and of a month that should be."""
    database = environment.add_database("retained")
    body = b"evt_".join(stripe_body())
    try:
        environment.put_off_checkpoints("4GB")  # one of them moves a p99 by more than any drop
        _make_days(database, "payloads", _days(1 - DROPPED_DAYS, 15))
        mondays = [day for day in _days(1 - DROPPED_DAYS, 45) if day.weekday() == 0]
        _make_days(database, "attempts", mondays)
        database.execute("set synchronous_commit = off")
        began = time.monotonic()
        for first in range(1, count + 1, CHUNK):
            last = min(first + CHUNK - 1, count)
            span = timedelta(days=SPAN_DAYS)
            database.execute(FILL, first, last, count, span, TYPE, body, DROPPED_DAYS, HANDLER)
            if last % 1_000_000 == 0 or last == count:
                print(f"  {last:,} events filled, {time.monotonic() - began:.0f} s", flush=True)
        database.execute("reset synchronous_commit")
        database.execute("vacuum analyze")
        database.execute("checkpoint")
        os.sync()  # else the disk is at it for minutes
        yield database
    finally:
        environment.put_off_checkpoints(None)
        database.close()
        environment.database.execute('drop database "retained" with (force)')
