-- name: claim
-- Events, their payloads and their deliveries in one statement; a key that is taken comes back as no row, and so do
-- bytes that another event brought first (processed_events_guard), unless they are known to be flagged.
-- In key order, so that two processes with crossed batches wait for each other and never in a circle.
-- Deliveries are numbered in the order of arrival. One with an order key waits for its turn (advance).
with input as materialized (
    select c.*, now() + make_interval(secs => c.delay_s) as not_before, b.body,
           nextval('gateway.payload_ids') as payload_id,
           gateway.forget_on(now(), coalesce(kept.payload, interval '14 days')) as payload_until
    from json_to_recordset($1::json) as c (
        n bigint, route text, event_id text, provider text, type text, account text, object_id text,
        livemode boolean, occurred_at timestamptz, received_at timestamptz, digest text,
        guard text, headers jsonb, repeats text, repeat_of text, handlers json,
        order_keys json, spooled boolean, delay_s double precision, reconciled boolean,
        verified_by text, clock_s real, key_id text, unverified boolean, trace text)
    join unnest($2::bytea[]) with ordinality as b (body, n) using (n)
    left join gateway.retention kept using (route)
), claimed as (
    insert into gateway.processed_events
        (route, event_id, provider, type, account, object_id, livemode, occurred_at, received_at, digest,
         repeats, guard, repeat_of, spooled, reconciled, verified_by, clock_s, sealed, unverified,
         payload_id, payload_until, trace)
    select route, event_id, provider, type, account, object_id, livemode, occurred_at, received_at,
           decode(digest, 'hex'), repeats, decode(guard, 'hex'), repeat_of, spooled, coalesce(reconciled, false), verified_by, clock_s, key_id is not null,
           coalesce(unverified, false), payload_id, payload_until, trace
    from input
    order by route, event_id
    on conflict do nothing
    returning route, event_id, payload_id
), filed as (
    insert into gateway.payloads (id, until, route, event_id, headers, body, key_id)
    select payload_id, i.payload_until, i.route, i.event_id, i.headers, i.body, i.key_id
    from claimed
    join input i using (payload_id)
    order by payload_id
), fanned as (
    insert into gateway.deliveries (route, event_id, handler, order_key, not_before, due_at)
    select c.route, c.event_id, h.handler, i.order_keys ->> h.handler, i.not_before,
           case when i.order_keys ->> h.handler is not null then 'infinity'
                when i.spooled then least(i.received_at, now())  -- before what came later
                else greatest(i.not_before, now()) end
    from claimed c
    join input i using (payload_id)
    cross join json_array_elements_text(i.handlers) as h (handler)
    order by i.n, h.handler
    returning id, route, event_id, due_at <= now() as is_due
)
select route, event_id, coalesce(array_agg(id) filter (where id is not null), '{}') as delivery_ids,
       coalesce(array_agg(id) filter (where is_due), '{}') as due_ids
from (  -- one pass: as a join, the planner compares every event with every delivery
    select route, event_id, null::bigint as id, false as is_due from claimed
    union all
    select route, event_id, id, is_due from fanned
) as outcome
group by route, event_id;

-- name: find_claims
-- Why a key was not claimed: it is there already, or another event brought the same bytes first.
-- A commit whose wait for a synchronous standby was given up, or cut short by a restart, can be seen and
-- may still get lost. To answer for it, something is written after it: that commit waits for both.
select mine.digest, mine.reconciled, mine.sealed, first.event_id as first_event_id, first.type as first_type,
       first.received_at as first_received_at, written.lsn
from (
    select case when current_setting('synchronous_standby_names') <> ''
           then pg_logical_emit_message(true, 'gateway', '') end as lsn
    offset 0
) as written
cross join unnest($1::text[], $2::text[], $3::bytea[]) with ordinality as i (route, event_id, guard, n)
left join gateway.processed_events mine on mine.route = i.route and mine.event_id = i.event_id
left join gateway.processed_events first
       on first.route = i.route and first.guard = i.guard and first.event_id <> i.event_id
order by i.n;

-- name: end_windows
-- Dedup windows that are over: the event that holds the digest of a body gives it up, and stays (processed_events_guard).
update gateway.processed_events e
set guard = null
from unnest($1::text[], $2::bytea[], $3::timestamptz[]) as i (route, guard, until)
where e.route = i.route and e.guard = i.guard and e.received_at <= i.until;

-- name: publish
-- A job in the handler's own transaction: an event with its deliveries, unless the key is taken.
with claimed as (
    insert into gateway.processed_events
        (route, event_id, provider, type, occurred_at, received_at, digest, sealed, trace, payload_id,
         payload_until)
    values ($1, $2, 'publish', $3, $4, $4, $5, $9::text is not null, $10, nextval('gateway.payload_ids'),
            gateway.forget_on(now(), coalesce(
                (select payload from gateway.retention where route = $1), interval '14 days')))
    on conflict do nothing
    returning route, event_id, payload_id, payload_until
), filed as (
    insert into gateway.payloads (id, until, route, event_id, headers, body, key_id)
    select payload_id, payload_until, route, event_id, '{}', $6, $9 from claimed
), fanned as (
    insert into gateway.deliveries (route, event_id, handler, order_key, due_at)
    select c.route, c.event_id, h.handler, h.order_key,
           case when h.order_key is null then now() else 'infinity' end
    from claimed c
    cross join unnest($7::text[], $8::text[]) as h (handler, order_key)
    order by h.handler
    returning id
)
select exists (select from claimed) as is_new, array (select id from fanned) as delivery_ids,
       (select digest <> $5 and sealed = ($9 is not null)  -- both keyed, or neither
        from gateway.processed_events where route = $1 and event_id = $2) as differs;
