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
       e.object_id, e.replay_of, e.spooled, e.reconciled, e.unverified, p.id is not null as payload_kept,
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
       encode(e.digest, 'hex') as digest, p.headers, p.body, e.replay_of, e.spooled,
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

-- name: find_delivery
-- One delivery and where it stands (primary key).
select d.id as delivery_id, d.route, d.event_id, d.handler, d.status, d.attempts, d.error,
       d.created_at, nullif(d.due_at, 'infinity') as due_at, d.leased_at, d.finished_at, d.order_key,
       p.id is not null as payload_kept
from gateway.deliveries d
left join lateral (
    select payload_id, payload_until from gateway.processed_events
    where route = d.route and event_id = d.event_id
    limit 1
) e on true
left join lateral (
    select id from gateway.payloads where id = e.payload_id and until = e.payload_until limit 1
) p on true
where d.id = $1;

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

-- name: list_effects
-- The outside effects of some deliveries. Of one that another delivery has for the same key: how it stands there, and the
-- event of that delivery, as long as it is kept (primary keys).
select f.delivery_id, f.name, f.key, coalesce(m.status, f.status) as status, f.calls, coalesce(m.error, f.error) as error,
       f.result, f.begun_at, f.unknown_at, f.finished_at, f.sealed, f.made_by, d.event_id as made_by_event
from gateway.effects f
left join lateral (
    select status, error from gateway.effects where delivery_id = f.made_by and name = f.name limit 1
) m on f.status <> 'done'
left join lateral (
    select event_id from gateway.deliveries where id = f.made_by limit 1
) d on true
where f.delivery_id = any ($1::bigint[])
order by f.delivery_id, f.begun_at, f.name;

-- name: list_audit
-- What was done to some deliveries by people and by retention.
select delivery_id, at, actor, action, effect, reason, order_id
from gateway.audit
where delivery_id = any ($1::bigint[])
order by id;
