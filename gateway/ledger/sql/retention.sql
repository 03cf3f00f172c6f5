-- name: expire_dead
-- Dead letters past their retention are given up, with an audit row for each (deliveries_dead).
with old as (
    select id
    from gateway.deliveries
    where status = 'dead' and route = $1 and finished_at < now() - $2::interval
    order by finished_at, id
    limit $3
    for update skip locked
), discarded as (
    update gateway.deliveries d
    set status = 'discarded', finished_at = now()
    where d.id = any (array (select id from old)) and d.status = 'dead'
    returning d.id, d.route, d.event_id
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, reason)
    select 'retention', 'discard', id, route, event_id, 'dead for longer than retention.dead'
    from discarded
)
select count(*) from discarded;

-- name: start_prune
-- Whether this worker may prune now: one at a time does, until the end of its transaction.
-- A prune that a crash undoes is simply done again, so its commit need not wait for the disk; and a
-- plan made while the tables were small must not scan them once they have grown.
select pg_try_advisory_xact_lock($1)
from set_config('synchronous_commit', 'off', true) as commits,
     set_config('enable_seqscan', 'off', true) as plans;

-- name: hold_events
-- Walks on from a mark to a given age, oldest first (processed_events_received), and holds those old
-- enough to lose something: against a replay, which takes a share of its event first.
with walked as materialized (
    select ctid, received_at, route, event_id, body is not null as has_body
    from gateway.processed_events
    where received_at < now() - $1::interval and (received_at, route, event_id) > ($2, $3, $4)
    order by received_at, route, event_id
    limit $5
), held as (
    select e.ctid
    from gateway.processed_events e
    where e.ctid = any (array (
        select w.ctid
        from walked w
        join unnest($6::text[], $7::interval[], $8::interval[]) as kept (route, key, payload)
          using (route)
        where w.received_at < now() - case when w.has_body then least(kept.key, kept.payload)
                                           else kept.key end
    ))
    for update skip locked
)
select received_at, route, event_id, (select count(*) from walked) as walked,
       (select array_agg(ctid)::text from held) as held
from walked
order by received_at desc, route desc, event_id desc
limit 1;

-- name: prune_events
-- Of events that are held: forgets them with their deliveries and attempts, or empties their bodies
-- and headers and leaves the key, so that a late retry is still a duplicate, or leaves them alone.
-- A statement of its own: it must see what was committed before they were held. From then on they and
-- their ended deliveries stay where they are, so that their places (ctid) can be relied on.
with held as materialized (
    select e.ctid as place, e.route, e.body is not null as has_body,
           coalesce(d.ended_at, e.received_at) as ended_at, d.unfinished, d.places
    from gateway.processed_events e
    cross join lateral (
        select bool_or(status in ('pending', 'running', 'dead')) as unfinished,
               max(finished_at) as ended_at, array_agg(ctid) as places
        from gateway.deliveries
        where route = e.route and event_id = e.event_id
    ) d
    where e.ctid = any ($1::text::tid[])
), sorted as materialized (
    select place, places, ended_at < now() - key as is_over,
           has_body and ended_at < now() - payload as is_emptied
    from held
    join unnest($2::text[], $3::interval[], $4::interval[]) as kept (route, key, payload)
      using (route)
    where unfinished is not true
), ended as (
    delete from gateway.deliveries
    where ctid = any (array (select unnest(places) from sorted where is_over))
      and status in ('done', 'discarded')
    returning id
), forgotten as (
    delete from gateway.attempts where delivery_id = any (array (select id from ended))
), undone as (
    delete from gateway.effects where delivery_id = any (array (select id from ended))
), freed as (
    delete from gateway.once_keys where delivery_id = any (array (select id from ended))
), removed as (
    delete from gateway.processed_events
    where ctid = any (array (select place from sorted where is_over))
    returning route
), emptied as (
    update gateway.processed_events
    set body = null, headers = null
    where ctid = any (array (select place from sorted where is_emptied and not is_over))
    returning route
)
select (select count(*) from removed) as keys, (select count(*) from emptied) as payloads;
