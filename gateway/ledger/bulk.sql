-- name: begin_bulk
-- Records a bulk operation before its first step, with its audit row.
with begun as (
    insert into gateway.bulk_orders (action, filter, actor, reason, rate, began_at, total, mark_at, effects)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    returning *
), noted as (
    insert into gateway.audit (actor, action, order_id, route, handler, reason)
    select actor, 'bulk ' || action, id, filter ->> 'route', filter ->> 'handler', reason from begun
)
select *, false as is_idle from begun;

-- name: hold_bulk
-- Locks a bulk operation for one step; another process that steps it waits (primary key). A plan made while the tables were
-- small must not scan them once they have grown.
select o.*, false as is_idle
from gateway.bulk_orders o
cross join set_config('enable_seqscan', 'off', true) as plans
cross join set_config('jit', 'off', true) as compiled  -- which takes longer than a step
where o.id = $1
for update of o;

-- name: step_bulk
-- Stores the cursor and the counts of a step, in its transaction (primary key).
update gateway.bulk_orders
set mark_at = $2, mark_id = $3, mark_route = $4, mark_event_id = $5,
    moved = moved + $6, skipped = skipped + $7, stepped_at = now(),
    effects_kept = effects_kept + $9, effects_unknown = effects_unknown + $10,
    status = case when $8 then 'done' else status end,
    finished_at = case when $8 then now() end
where id = $1
returning *, false as is_idle;

-- name: stop_bulk
-- Stops a bulk operation: no further step begins. With its audit row (primary key).
with stopped as (
    update gateway.bulk_orders set status = 'stopped'
    where id = $1 and status = 'running'
    returning *
), noted as (
    insert into gateway.audit (actor, action, order_id, route, handler, reason)
    select $2, 'stop bulk', id, filter ->> 'route', filter ->> 'handler', $3 from stopped
)
select *, false as is_idle from stopped;

-- name: resume_bulk
-- Resumes a bulk operation, at another rate if one is given, with its audit row (primary key). A process of an
-- earlier round makes no more steps.
with resumed as (
    update gateway.bulk_orders
    set status = 'running', resumed = resumed + 1, stepped_at = now(), rate = coalesce($4, rate)
    where id = $1 and status in ('running', 'stopped')
    returning *
), noted as (
    insert into gateway.audit (actor, action, order_id, route, handler, reason)
    select $2, 'resume bulk', id, filter ->> 'route', filter ->> 'handler', $3 from resumed
)
select *, false as is_idle from resumed;

-- name: find_bulk
-- One bulk operation, and whether it seems to have no running process (primary key).
select *, status = 'running' and stepped_at < now() - $2::interval as is_idle
from gateway.bulk_orders
where id = $1;

-- name: list_bulk
-- Bulk operations, newest first, from behind a cursor, and whether they seem to have no running process (primary key).
select *, status = 'running' and stepped_at < now() - $2::interval as is_idle
from gateway.bulk_orders
where id < coalesce($3, 9223372036854775807)
order by id desc
limit $1;

-- name: walk_dead
-- Walks from a cursor through the dead letters of the time when a bulk operation began (deliveries_dead), and returns
-- which of them match. Those that it has moved already do not: a clock that was set back can make a second death look
-- like an early one.
select w.id, w.finished_at,
       coalesce(w.route = $1, true) and coalesce(e.type like $2, $2 is null)
       and coalesce(w.handler = $3, true)
       and w.finished_at >= coalesce($4, timestamptz '-infinity')
       and coalesce(e.account = $6, $6 is null)
       and coalesce(w.error ilike $7, $7 is null)
       and coalesce(w.cause = $13, $13::bigint is null)
       and (select true from gateway.audit a
            where a.delivery_id = w.id and a.order_id = $8 limit 1) is null as is_matching
from (
    select id, finished_at, route, event_id, handler, error, cause
    from gateway.deliveries
    where status = 'dead' and (finished_at, id) > ($9, $10)
      and finished_at <= $11 and finished_at < coalesce($5, timestamptz 'infinity')
    order by finished_at, id
    limit $12
) w
left join lateral (
    select type, account from gateway.processed_events
    where route = w.route and event_id = w.event_id
    limit 1
) e on true
order by w.finished_at, w.id;

-- name: replay_dead
-- As replay, for those of a bulk operation that are still dead and have their payload. By ascending id, so that two
-- bulk operations wait for each other and never in a circle. With $6 effects of unknown outcome are run again, as by
-- replay.
with kept as materialized (
    select i.id
    from unnest($1::bigint[]) as i (id)
    cross join lateral (select route, event_id from gateway.deliveries where id = i.id limit 1) d
    where gateway.hold_payload(d.route, d.event_id)
), held as materialized (
    select id
    from gateway.deliveries
    where id = any (array (select id from kept)) and finished_at <= $2
      and status || '' = 'dead'  -- as it stands, the planner may walk all that is dead instead
    order by id
    for update
), replayed as (
    update gateway.deliveries d
    set status = 'pending', attempts = 0, losses = 0, conflicts = 0, error = null, finished_at = null,
        not_before = null, cause = null,
        due_at = case when d.order_key is null then now() else 'infinity' end
    where d.id = any (array (select id from held)) and d.status || '' = 'dead'
    returning d.id, d.route, d.event_id, d.handler, d.order_key
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, reason, order_id)
    select $3, 'replay', id, route, event_id, $4, $5 from replayed
), retried as (
    update gateway.effects e set status = 'begun', unknown_at = coalesce(e.unknown_at, now())
    from replayed r
    where $6 and e.delivery_id = r.id and e.made_by is null
      and (e.status = 'unknown' or e.status = 'begun' and e.unknown_at is null)
    returning e.delivery_id, e.name
), noted_effects as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, effect, reason, order_id)
    select $3, 'retry effect', r.id, r.route, r.event_id, o.name, $4, $5
    from retried o
    join replayed r on r.id = o.delivery_id
)
select r.id, r.route, r.handler, r.order_key, f.kept as effects_kept, f.unknown as effects_unknown
from kept
left join replayed r using (id)
cross join lateral (
    select count(*) filter (where status = 'done') as kept, count(*) filter (
        where made_by is null and (status = 'unknown' or status = 'begun' and unknown_at is null)) as unknown
    from gateway.effects  -- as they were before this statement
    where delivery_id = r.id
) f
order by r.id;

-- name: count_dead_effects
-- Effects of dead letters that match: done, and of unknown outcome (deliveries_dead, effects_pkey).
select coalesce(sum(f.kept), 0)::bigint as kept, coalesce(sum(f.unknown), 0)::bigint as unknown
from (
    select id, route, event_id, handler, error, cause
    from gateway.deliveries
    where status = 'dead' and finished_at <= $8
      and finished_at >= coalesce($4, timestamptz '-infinity')
      and finished_at < coalesce($5, timestamptz 'infinity')
) d
left join lateral (
    select type, account from gateway.processed_events
    where route = d.route and event_id = d.event_id
    limit 1
) e on true
cross join lateral (  -- as a plain join, it may be one with all effects
    select count(*) filter (where status = 'done') as kept, count(*) filter (
        where made_by is null and (status = 'unknown' or status = 'begun' and unknown_at is null)) as unknown
    from gateway.effects
    where delivery_id = d.id
) f
where coalesce(d.route = $1, true)
  and coalesce(e.type like $2, $2 is null)
  and coalesce(d.handler = $3, true)
  and coalesce(e.account = $6, $6 is null)
  and coalesce(d.error ilike $7, $7 is null)
  and coalesce(d.cause = $9, $9::bigint is null);

-- name: discard_dead
-- As discard, for those of a bulk operation that are still dead (primary key), by ascending id.
with held as materialized (
    select id
    from gateway.deliveries
    where id = any ($1::bigint[]) and finished_at <= $2 and status || '' = 'dead'
    order by id
    for update
), discarded as (
    update gateway.deliveries
    set status = 'discarded', finished_at = now()
    where id = any (array (select id from held)) and status || '' = 'dead'
    returning id, route, event_id, handler, order_key
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, reason, order_id)
    select $3, 'discard', id, route, event_id, $4, $5 from discarded
), listed as (  -- calls that may have been done, and retries that were requested: no run makes them now
    update gateway.effects e set status = 'unknown', unknown_at = now()
    from discarded d
    where e.delivery_id = d.id and e.status = 'begun' and e.made_by is null
)
select d.id, d.route, d.handler, d.order_key
from unnest($1::bigint[]) as i (id)
left join discarded d using (id)
order by d.id;

-- name: count_undelivered
-- Events of some routes in a time for which a handler has no delivery, by type
-- (processed_events_newest).
select e.route, $2::text as handler, e.type, null::text as error, count(*) as count,
       count(*) filter (where not gateway.has_payload(e.payload_id, e.payload_until)) as without_payload,
       min(e.received_at) as first_at, max(e.received_at) as last_at, null::bigint as delivery_id
from gateway.processed_events e
where e.route = any ($1::text[])
  and e.received_at >= $3 and e.received_at < coalesce($4, timestamptz 'infinity')
  and e.received_at <= $5
  and coalesce(e.type like $6, true)
  and coalesce(e.account = $7, $7 is null)
  and (select true from gateway.deliveries d
       where d.route = e.route and d.event_id = e.event_id and d.handler = $2 limit 1) is null
group by e.route, e.type
order by count desc, e.route, e.type;

-- name: count_done_by_others
-- Of the events that count_undelivered counts: how many which other handler has done, by type (processed_events_newest,
-- deliveries_route_event_id_handler_key).
select e.route, e.type, d.handler, count(*) as count
from gateway.processed_events e
cross join lateral (  -- as a plain join, it may be one with all deliveries
    select handler from gateway.deliveries
    where route = e.route and event_id = e.event_id and status || '' = 'done'
    limit 1000
) d
where e.route = any ($1::text[])
  and e.received_at >= $3 and e.received_at < coalesce($4, timestamptz 'infinity')
  and e.received_at <= $5
  and coalesce(e.type like $6, true)
  and coalesce(e.account = $7, $7 is null)
  and (select true from gateway.deliveries d
       where d.route = e.route and d.event_id = e.event_id and d.handler = $2 limit 1) is null
group by e.route, e.type, d.handler
order by e.route, e.type, d.handler;

-- name: walk_events
-- Walks from a cursor through the events that were received before a bulk operation began
-- (processed_events_newest), and returns for which of them a handler has no delivery.
select w.received_at, w.route, w.event_id, w.type,
       w.route = any ($1::text[])
       and coalesce(w.type like $3, true)
       and coalesce(w.account = $4, $4 is null)
       and (select true from gateway.deliveries d
            where d.route = w.route and d.event_id = w.event_id and d.handler = $2
            limit 1) is null as is_matching
from (
    select received_at, route, event_id, type, account
    from gateway.processed_events
    where (received_at, route, event_id) > ($6, $7, $8)
      and received_at <= $9 and received_at < coalesce($5, timestamptz 'infinity')
    order by received_at, route, event_id
    limit $10
) w
order by w.received_at, w.route, w.event_id;

-- name: read_payload
-- What an event's order key is made from (primary key).
select p.headers, p.body, p.key_id
from gateway.processed_events e
join gateway.payloads p on p.id = e.payload_id and p.until = e.payload_until
where e.route = $1 and e.event_id = $2;

-- name: deliver_events
-- Deliveries of events to a handler that has none, numbered in the order given, with their audit rows.
-- The event is held as by a replay. One with an order key waits for its turn (advance).
with kept as materialized (
    select i.route, i.event_id, i.order_key, i.n
    from unnest($1::text[], $2::text[], $3::text[]) with ordinality
         as i (route, event_id, order_key, n)
    where gateway.hold_payload(i.route, i.event_id)
), made as (
    insert into gateway.deliveries (route, event_id, handler, order_key, due_at, added)
    select route, event_id, $4, order_key,
           case when order_key is null then now() else 'infinity' end, true
    from kept
    order by n
    on conflict (route, event_id, handler) do nothing
    returning id, route, event_id, handler, order_key
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, reason, order_id)
    select $5, 'deliver', id, route, event_id, $6, $7 from made
)
select m.id, m.route, m.handler, m.order_key
from kept
left join made m using (route, event_id)
order by m.id;

-- name: read_clock
-- The time before which a row must have changed to be part of a bulk operation: now, or an earlier one.
select least($1, clock_timestamp());

-- name: group_dead
-- Dead letters until a moment by route, handler and what their errors have in common, the most first
-- (deliveries_dead). Equal errors are put together first: what they have in common takes long to tell.
-- Where all of a group are equal, the error is shown as it is: the key of a KeyError is what matters.
-- Each row tells of all groups how many letters there are, and how many have no payload. Of the newest
-- only, where so many are asked for ($11).
with letters as materialized (
    select d.route, d.handler, left(d.error, 300) as error, count(*) as n,
           count(*) filter (where e.has_payload is not true) as without_payload,
           min(d.finished_at) as first_at, max(d.finished_at) as last_at, max(d.id) as delivery_id
    from (
        select id, route, event_id, handler, error, cause, finished_at
        from gateway.deliveries
        where status = 'dead' and finished_at <= $8
          and finished_at >= coalesce($4, timestamptz '-infinity')
          and finished_at < coalesce($5, timestamptz 'infinity')
        order by finished_at desc, id desc
        limit $11
    ) d
    left join lateral (
        select e.type, e.account, gateway.has_payload(e.payload_id, e.payload_until) as has_payload
        from gateway.processed_events e
        where e.route = d.route and e.event_id = d.event_id
        limit 1
    ) e on true
    where coalesce(d.route = $1, true)
      and coalesce(e.type like $2, $2 is null)
      and coalesce(d.handler = $3, true)
      and coalesce(e.account = $6, $6 is null)
      and coalesce(d.error ilike $7, $7 is null)
      and coalesce(d.cause = $10, $10::bigint is null)
    group by 1, 2, 3
), named as (
    select *, gateway.common_error(error) as common
    from letters
)
select route, handler, null::text as type,
       case when count(*) = 1 then regexp_replace(min(error), '[[:cntrl:]]+', '…', 'g')
            else common end as error,
       sum(n)::bigint as count, min(first_at) as first_at, max(last_at) as last_at,
       max(delivery_id) as delivery_id,
       (sum(sum(n)) over ())::bigint as total,
       (sum(sum(without_payload)) over ())::bigint as without_payload
from named
group by route, handler, common
order by count desc, last_at desc, 1, 2, 4
limit $9;

-- name: has_dead_beyond
-- Whether more than so many died in a time (deliveries_dead, from which alone they are counted).
select exists (
    select from gateway.deliveries
    where status = 'dead' and finished_at <= $3
      and finished_at >= coalesce($1, timestamptz '-infinity')
      and finished_at < coalesce($2, timestamptz 'infinity')
    order by finished_at desc, id desc
    offset $4
);
