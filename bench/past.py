"""A ledger of many routes with a month behind it: what a person looks into. Made by SQL."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.database import Database
from bench.requests import TYPE, stripe_body

CHUNK = 500_000
ROUTES = ("stripe", "github", *(f"route_{n}" for n in range(2, 10)))
"""Event number n came by the route number n % 10, which has one handler."""
RARE_TYPE, RARE_EVERY = "rare.type", 1_000_000
RARE_ERROR, RARE_DEATH_EVERY = "KeyError: 'rare'", 50_000
TIMES = [0] * 40 + [3] * 20
"""How many of a minute took how long; the longest are not alike, so that nothing is added up once
for all."""
INDEXED = ("processed_events", "deliveries", "tallies")

EVENTS = """
insert into gateway.processed_events
    (route, event_id, provider, type, account, livemode, occurred_at, received_at, digest,
     payload_id, payload_until, object_id, verified_by)
select ($4::text[])[n % 10 + 1], 'evt_' || md5(n::text), 'stripe',
       case when n % $6::bigint = $6::bigint / 2 then $7 else $5 end, 'acct_' || n % 1000, false,
       at, at, sha256(n::text::bytea), -n, gateway.forget_on(at, '14 days'), 'pi_' || n / 3,
       'env:BENCH_SECRET'
from (select n, now() - interval '30 days' + n * (interval '30 days' / $3::bigint) as at
      from generate_series($1::bigint, $2::bigint) as n) as past
"""
PAYLOADS = """
insert into gateway.payloads (id, until, route, event_id, headers, body)
select -n, gateway.forget_on(at, '14 days'), ($4::text[])[n % 10 + 1], 'evt_' || md5(n::text),
       '{"host": "bench"}', $5::bytea
from (select n, now() - interval '30 days' + n * (interval '30 days' / $3::bigint) as at
      from generate_series($1::bigint, $2::bigint) as n) as past
"""
DELIVERIES = """
insert into gateway.deliveries
    (id, route, event_id, handler, status, attempts, runs, due_at, created_at, finished_at, error)
overriding system value
select n, ($5::text[])[n % 10 + 1], 'evt_' || md5(n::text), 'handlers.h' || n % 10, status,
       1, 1, at, at, case when status <> 'pending' then at + interval '5 ms' end,
       case when status = 'dead' and n / $6::bigint % $7::bigint = $7::bigint / 2 then $8
            when status = 'dead' then format(
                'ConnectTimeout: %s did not answer POST /v1/orders/ord_%s within 30.0 s',
                repeat(chr((97 + n / $6::bigint % 26)::integer), 8), n) end
from (select n, now() - interval '30 days' + n * (interval '30 days' / $3::bigint) as at,
             case when n > $4::bigint then 'pending'
                  when n % $6::bigint = n / $6::bigint % $6::bigint then 'dead'
                  else 'done' end as status
      from generate_series($1::bigint, $2::bigint) as n) as past
"""
ATTEMPTS = """
insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome, error)
select id, 1, created_at, finished_at, status, error
from gateway.deliveries
where status = 'dead'
"""
SERIAL = "select setval(pg_get_serial_sequence('gateway.deliveries', 'id'), $1::bigint)"
TALLIES = """
insert into gateway.tallies (minute, route, handler, outcome, n, times)
select minute, route, case when outcome = any ('{done,retry,dead}') then 'handlers.h' || place - 1
                           else '' end,
       outcome, 60, case when outcome = any ('{acknowledged,done,retry,dead}')
                         then $2::integer[] || (extract(epoch from minute)::bigint / 60 % 9973
                                                + 10007 * (10 * place + length(outcome)))::integer
                         else '{}' end
from generate_series(date_trunc('minute', now() - interval '7 d'), now(), interval '1 min') minute
cross join unnest($1::text[]) with ordinality as r (route, place)
cross join unnest(
    '{accepted,duplicate,BAD_SIGNATURE,acknowledged,done,retry,dead}'::text[]
) as o (outcome)
"""
TOGETHER = """
insert into gateway.tallies (minute, route, handler, outcome, n, times)
select minute, '', case when handler = '' then '' else '*' end, outcome, sum(n), max(times)
from gateway.tallies group by 1, 2, 3, 4
"""
HOURS = """
insert into gateway.tally_hours (hour, route, handler, outcome, n, times)
select date_trunc('hour', minute, 'UTC'), route, handler, outcome, sum(n), max(times)
from gateway.tallies group by 1, 2, 3, 4
"""
TOTALS = """
insert into gateway.totals (route, handler, outcome, n, last_at)
select route, handler, outcome, sum(n), max(minute) from gateway.tallies
where route <> '' group by 1, 2, 3
"""
AUDIT = """
insert into gateway.audit (at, actor, action, delivery_id, route, event_id)
select finished_at, 'ann', 'replay', id, route, event_id
from gateway.deliveries where status = 'dead'
"""
BULK = """
insert into gateway.bulk_orders
    (action, filter, actor, began_at, total, moved, mark_at, status, finished_at)
select 'replay', '{"route": "stripe"}', 'ann', at, 100, 100, at, 'done', at
from generate_series(now() - interval '30 days', now(), interval '45 min') as at
"""
RUNS = """
insert into gateway.reconciliations
    (route, actor, since, until, dry_run, status, listed, started_at, finished_at)
select 'stripe', 'schedule', at - interval '1 h', at, false, 'done', 1000, at, at
from generate_series(now() - interval '30 days', now(), interval '1 h') as at
"""
REJECTED = """
insert into gateway.rejected
    (route, at, code, cause, detail, method, path, address, sender, headers, body, body_bytes, size)
select route, now() - n * interval '1 min', 'BAD_SIGNATURE', 'cause_' || n % 5,
       'no secret of the route made this signature', 'POST', '/webhooks/' || route, '192.0.2.1',
       'a', '{"host": "bench"}', $2::bytea, length($2::bytea), length($2::bytea)
from unnest($1::text[]) as route, generate_series(1, 200) as n
"""
INDEXES = """
select i.indexrelid::regclass::text as name, pg_get_indexdef(i.indexrelid) as definition,
       c.conname, c.conrelid::regclass::text as table, pg_get_constraintdef(c.oid) as constraint
from pg_index i
left join pg_constraint c on c.conindid = i.indexrelid
where i.indrelid = any (select ('gateway.' || t)::regclass from unnest($1::text[]) as t)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """How much of it."""

    events: int
    waiting: int
    """The newest ones."""
    bodies: int
    """Newer still."""
    dead: int

    @property
    def died_every(self) -> int:
        return (self.events - self.waiting) // self.dead


def make_past(database: Database, past: Past, tell: Callable[[int], None]) -> None:
    """All but the newest without their indexes, which are made at the end; the newest as they come
    in, so that what is looked at first is not what vacuum has been at."""
    body = b"evt_".join(stripe_body())
    settled = past.events - past.bodies
    database.execute("set synchronous_commit = off")
    database.execute("set maintenance_work_mem = '512MB'")
    with _without_indexes(database):
        for first in range(1, settled + 1, CHUNK):
            _add(database, past, body, first, min(first + CHUNK - 1, settled))
            tell(min(first + CHUNK - 1, settled))
        database.execute(ATTEMPTS)
        database.execute(TALLIES, ROUTES, TIMES)
    for statement in (TOGETHER, HOURS, TOTALS, AUDIT, BULK, RUNS):
        database.execute(statement)
    database.execute(REJECTED, ROUTES, body)
    database.execute("vacuum analyze")
    _add(database, past, body, settled + 1, past.events)
    database.fetchval(SERIAL, past.events)
    database.execute("checkpoint")
    database.execute("reset synchronous_commit")


def _add(database: Database, past: Past, body: bytes, first: int, last: int) -> None:
    with_body, done = past.events - past.bodies, past.events - past.waiting
    some = (first, last, past.events)
    database.execute(EVENTS, *some, ROUTES, TYPE, RARE_EVERY, RARE_TYPE)
    database.execute(PAYLOADS, max(first, with_body + 1), last, past.events, ROUTES, body)
    database.execute(DELIVERIES, *some, done, ROUTES, past.died_every, RARE_DEATH_EVERY, RARE_ERROR)


@contextlib.contextmanager
def _without_indexes(database: Database) -> Iterator[None]:
    indexes = database.fetch(INDEXES, INDEXED)
    for index in indexes:
        if index["conname"] is None:
            database.execute(f"drop index {index['name']}")
        else:
            database.execute(f"alter table {index['table']} drop constraint {index['conname']}")
    yield
    for index in indexes:
        if index["conname"] is None:
            database.execute(index["definition"])
        else:
            database.execute(
                f"alter table {index['table']} add constraint {index['conname']}"
                f" {index['constraint']}"
            )
