"""Ledgers with a past, made by SQL: events that were received, processed and settled long ago."""

from collections.abc import Callable
from datetime import timedelta

from bench.claims import HANDLER
from bench.database import Database
from bench.requests import TYPE, stripe_body

CHUNK = 100_000
FILL = """
with events as (
    insert into gateway.processed_events
        (route, event_id, provider, type, livemode, occurred_at, received_at, digest, payload_id,
         payload_until)
    select 'stripe', 'evt_' || md5(random()::text || n), 'stripe', $5, false, at, at,
           sha256(n::text::bytea), -n, gateway.forget_on(at, '14 days')
    from (select n, now() - $7::interval + n * ($8::interval / $3::bigint) as at
          from generate_series($1::bigint, $2::bigint) as n) as past
    returning event_id, received_at, payload_id, payload_until
), filed as (
    insert into gateway.payloads (id, until, route, event_id, headers, body)
    select payload_id, payload_until, 'stripe', event_id, '{}', $6::bytea
    from events where payload_id < $4::bigint - $3::bigint
), settled as (
    insert into gateway.deliveries
        (route, event_id, handler, status, attempts, runs, due_at, created_at, finished_at)
    select 'stripe', event_id, $9, 'done', 1, 1, received_at, received_at,
           received_at + interval '5 ms'
    from events
    returning id, created_at, finished_at
)
insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome, until)
select id, 1, created_at, finished_at, 'done', gateway.forget_on(created_at, '35 days')
from settled
"""


def fill(
    database: Database,
    count: int,
    *,
    since: timedelta,
    over: timedelta,
    bodies: int = 0,
    tell: Callable[[int], None] = lambda _: None,
) -> None:
    """Events from `since` ago on, spread over a time; the newest so many keep their body."""
    body = b"evt_".join(stripe_body())
    database.execute("set synchronous_commit = off")
    for first in range(1, count + 1, CHUNK):
        last = min(first + CHUNK - 1, count)
        database.execute(FILL, first, last, count, bodies, TYPE, body, since, over, HANDLER)
        tell(last)
    database.execute("reset synchronous_commit")
    database.execute("vacuum analyze")
    database.execute("checkpoint")
