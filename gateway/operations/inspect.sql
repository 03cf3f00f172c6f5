-- name: list_event_keys
-- The keys of the newest events that match, from behind a mark (processed_events_newest; of an account
-- processed_events_account, about an object processed_events_object). At most so many are looked at ($10),
-- so that what is rare costs no more than what is not; where that may not be all of them, the last row
-- says how far the walk came. It begins at the mark, or where the time ends that is asked for: of two
-- bounds, an index may begin at the wrong one.
with walked as materialized (
    (select received_at, route, event_id, type
     from gateway.processed_events
     where $7::text is null and $8::text is null
       and received_at >= coalesce($5, timestamptz '-infinity')
       and (received_at, route, event_id)
           < (coalesce($11, $6, timestamptz 'infinity'), coalesce($12, ''), coalesce($13, ''))
     order by received_at desc, route desc, event_id desc
     limit $10)
    union all
    (select received_at, route, event_id, type
     from gateway.processed_events
     where account = $7 and coalesce(object_id = $8, $8 is null)
       and received_at >= coalesce($5, timestamptz '-infinity')
       and (received_at, route, event_id)
           < (coalesce($11, $6, timestamptz 'infinity'), coalesce($12, ''), coalesce($13, ''))
     order by received_at desc, route desc, event_id desc
     limit $10)
    union all
    (select received_at, route, event_id, type
     from gateway.processed_events
     where object_id = $8 and $7::text is null
       and received_at >= coalesce($5, timestamptz '-infinity')
       and (received_at, route, event_id)
           < (coalesce($11, $6, timestamptz 'infinity'), coalesce($12, ''), coalesce($13, ''))
     order by received_at desc, route desc, event_id desc
     limit $10)
), matching as (
    select received_at, route, event_id
    from walked w
    where coalesce(w.route = $1, true)
      and coalesce(w.type like $2, true)
      and coalesce(w.received_at < $6, true)
      and ($3::text is null or (  -- not as exists, which may become a join with all deliveries
            select true from gateway.deliveries d
            where d.route = w.route and d.event_id = w.event_id and d.handler = $3))
      and ($4::text is null or (
            select true from gateway.deliveries d
            where d.route = w.route and d.event_id = w.event_id and d.status = $4
            limit 1))
    order by received_at desc, route desc, event_id desc
    limit $9
)
select *, true as is_match from matching
union all
(select received_at, route, event_id, false
 from walked
 where (select count(*) from walked) >= $10
 order by received_at, route, event_id
 limit 1);

-- name: read_events
-- Events with the state of their deliveries (primary keys).
select e.received_at, e.route, e.event_id, e.type, e.account, e.livemode, e.occurred_at, e.provider,
       e.object_id, e.repeat_of, e.spooled, e.reconciled, e.unverified, p.id is not null as payload_kept,
       p.id is null and exists (
           select from gateway.audit a
           where a.action = 'erase' and a.route = e.route and a.event_id = e.event_id) as is_erased,
       coalesce((
           select jsonb_object_agg(status, n)
           from (select status, count(*) as n from gateway.deliveries d
                 where d.route = e.route and d.event_id = e.event_id group by status) s
       ), '{}') as deliveries
from unnest($1::text[], $2::text[]) as k (route, event_id)
cross join lateral (  -- as a plain join, it may be one with all events
    select * from gateway.processed_events where route = k.route and event_id = k.event_id limit 1
) e
left join lateral (
    select id from gateway.payloads where id = e.payload_id and until = e.payload_until limit 1
) p on true
order by e.received_at desc, e.route desc, e.event_id desc;

-- name: find_events
-- Events with this id, on any route or on one (primary key, one probe per route that has events).
with recursive routes as (
    (select route from gateway.processed_events order by route limit 1)
    union all
    select next.route
    from routes r
    cross join lateral (
        select route from gateway.processed_events where route > r.route order by route limit 1
    ) next
)
select e.route, e.event_id, e.provider, e.type, e.account, e.object_id, e.livemode, e.occurred_at, e.received_at,
       encode(e.digest, 'hex') as digest, p.headers, p.body, e.repeat_of, e.spooled,
       e.reconciled, e.verified_by, e.clock_s, p.key_id, e.unverified
from routes r
cross join lateral (
    select * from gateway.processed_events where route = r.route and event_id = $2 limit 1
) e
left join lateral (
    select headers, body, key_id from gateway.payloads
    where id = e.payload_id and until = e.payload_until
    limit 1
) p on true
where $1::text[] is null or e.route = any ($1)
order by e.route;

-- name: list_deliveries
-- The deliveries of one event.
select d.id as delivery_id, d.route, d.event_id, d.handler, d.status, d.attempts, d.error,
       d.created_at, nullif(d.due_at, 'infinity') as due_at, d.leased_at, d.finished_at, d.order_key,
       holder.id as held_by, holder.status as held_by_status,
       d.workers_lost >= 2 and d.status in ('pending', 'running') as runs_alone
from gateway.deliveries d
left join lateral (  -- what has the turn, or blocks it
    select h.id, h.status
    from gateway.deliveries h
    where d.due_at = 'infinity' and d.status = 'pending'
      and h.route = d.route and h.handler = d.handler and h.order_key = d.order_key
      and (h.status in ('pending', 'running') and h.due_at < 'infinity' or h.status = 'dead')
    order by h.status = 'dead', h.id
    limit 1
) holder on true
where d.route = $1 and d.event_id = $2
order by d.id;

-- name: list_attempts
-- The attempts of some deliveries, in order.
select delivery_id, number, started_at, finished_at, outcome, error, sealed
from gateway.attempts
where delivery_id = any ($1::bigint[])
order by delivery_id, number;

-- name: list_audit
-- What was done to some deliveries by people and by retention.
select delivery_id, at, actor, action, effect, reason, order_id as bulk_id
from gateway.audit
where delivery_id = any ($1::bigint[])
order by id;

-- name: list_dead
-- Dead letters, newest first, from behind a mark (deliveries_dead; of one cause deliveries_cause). At most
-- so many are looked at ($12), as in list_event_keys; a last row without a type says how far that was.
with walked as materialized (
    (select id, route, event_id, handler, status, attempts, error, created_at, finished_at
     from gateway.deliveries
     where status = 'dead' and $11::bigint is null
       and finished_at >= coalesce($4, timestamptz '-infinity')
       and (finished_at, id) < (coalesce($9, $5, timestamptz 'infinity'), coalesce($10::bigint, 0))
     order by finished_at desc, id desc
     limit $12)
    union all
    (select id, route, event_id, handler, status, attempts, error, created_at, finished_at
     from gateway.deliveries
     where status = 'dead' and cause = $11
       and finished_at >= coalesce($4, timestamptz '-infinity')
       and (finished_at, id) < (coalesce($9, $5, timestamptz 'infinity'), coalesce($10::bigint, 0))
     order by finished_at desc, id desc
     limit $12)
), matching as (
    select w.id as delivery_id, w.route, w.event_id, e.type, e.account, w.handler, w.status, w.attempts,
           w.error, w.created_at, w.finished_at
    from walked w
    cross join lateral (  -- as a plain join, it may be one with all events
        select type, account from gateway.processed_events
        where route = w.route and event_id = w.event_id
        limit 1
    ) e
    where coalesce(w.route = $1, true)
      and coalesce(e.type like $2, true)
      and coalesce(w.handler = $3, true)
      and coalesce(w.finished_at < $5, true)
      and coalesce(e.account = $6, $6 is null)
      and ($7::text is null or w.error ilike $7)
    order by w.finished_at desc, w.id desc
    limit $8
)
select *
from (
    select * from matching
    union all
    (select id, route, event_id, null, null, handler, status, attempts, null, created_at, finished_at
     from walked
     where (select count(*) from walked) >= $12
     order by finished_at, id
     limit 1)
) as found
order by type is null, finished_at desc, delivery_id desc;

-- name: note_reveal
-- Who has had encrypted events shown to him, and why.
insert into gateway.audit (actor, action, route, event_id, reason)
select $1, 'reveal', k.route, k.event_id, $2
from unnest($3::text[], $4::text[]) as k (route, event_id);

-- name: note_test_event
-- Who has a made-up event of a type sent to a route.
insert into gateway.audit (actor, action, route, reason) values ($1, 'send test', $2, $3);

-- name: list_all_audit
-- What people and retention did, newest first, from behind a cursor (primary key).
select id, at, actor, action, delivery_id, effect, order_id as bulk_id, route, handler, event_id, reason
from gateway.audit
where id < coalesce($2, 9223372036854775807)
order by id desc
limit $1;
