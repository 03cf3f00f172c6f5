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
), listed as (  -- as by discard
    update gateway.effects e set status = 'unknown', unknown_at = now()
    from discarded d
    where e.delivery_id = d.id and e.status = 'begun' and e.made_by is null
)
select count(*) from discarded;

-- name: expire_audit
-- Forgets what was done longer ago than the audit is kept (audit_at), and the bulk operations of that time: a
-- day's worth at once, which leaves one row that says so.
with due as (
    select min(at) < now() - $1::interval - interval '1 day' as is_due from gateway.audit
), old as (
    select id
    from gateway.audit
    where at < now() - $1::interval and (select is_due from due)
    order by at
    limit $2
    for update skip locked
), gone as (
    delete from gateway.audit where id = any (array (select id from old)) returning id
), bulk as (
    delete from gateway.bulk_orders
    where stepped_at < now() - $1::interval and (select is_due from due)
), noted as (
    insert into gateway.audit (actor, action, reason)
    select 'retention', 'prune', count(*) || ' rows of the audit log, older than ' || $1::interval
    from gone
    having count(*) > 0
)
select count(*) from gone;

-- name: await_prune
-- Waits until no other prunes, and holds the others off until the end of the transaction.
select pg_advisory_xact_lock($1);

-- name: start_prune
-- Whether this worker may prune now: one at a time does, until the end of its transaction.
-- A prune that a crash undoes is simply done again, so its commit need not wait for the disk; and a
-- plan made while the tables were small must not scan them once they have grown, nor be compiled for it.
select pg_try_advisory_xact_lock($1)
from set_config('synchronous_commit', 'off', true) as commits,
     set_config('enable_seqscan', 'off', true) as plans,
     set_config('jit', 'off', true) as compiled;

-- name: hold_events
-- Walks on from a mark to a given age, oldest first (processed_events_newest), and holds those old
-- enough to lose something: against a replay, which holds its event first. Most payloads are left to be
-- dropped with their day: one by one go those that were filed under a later day than is asked for.
with walked as materialized (
    select ctid, received_at, route, event_id, payload_until
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
        where w.received_at < now() - kept.key
           or w.received_at < now() - kept.payload
              and w.payload_until > gateway.forget_on(w.received_at, kept.payload)
    ))
    for update skip locked
)
select received_at, route, event_id, (select count(*) from walked) as walked,
       (select array_agg(ctid)::text from held) as held
from walked
order by received_at desc, route desc, event_id desc
limit 1;

-- name: prune_events
-- Of events that are held: forgets them with their deliveries, or forgets their payloads and leaves the
-- key, so that a late retry is still a duplicate, or leaves them alone. Attempts are dropped with their
-- day, and so are most payloads: one by one go those that were filed under one so late ($5 days ahead)
-- that nobody would keep them for as long.
-- A statement of its own: it must see what was committed before they were held. From then on they and
-- their ended deliveries stay where they are, so that their places (ctid) can be relied on.
with held as materialized (
    select e.ctid as place, e.route, e.payload_id, e.payload_until,
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
    select place, places, payload_id, payload_until, ended_at < now() - key as is_over,
           ended_at < now() - payload
               and payload_until > gateway.forget_on(ended_at, payload) as is_emptied
    from held
    join unnest($2::text[], $3::interval[], $4::interval[]) as kept (route, key, payload)
      using (route)
    where unfinished is not true
), ended as (
    delete from gateway.deliveries
    where ctid = any (array (select unnest(places) from sorted where is_over))
      and status in ('done', 'discarded')
    returning id, route, event_id
), forgotten as (
    delete from gateway.attempts
    where delivery_id = any (array (select id from ended))
      and until > (now() at time zone 'UTC')::date + $5::integer
), undone as (
    delete from gateway.effects where delivery_id = any (array (select id from ended))
    returning delivery_id, name, status
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, effect, reason)
    select 'retention', 'forget effect', ended.id, ended.route, ended.event_id, undone.name,
           'its outcome was unknown for longer than retention.key'
    from undone
    join ended on ended.id = undone.delivery_id
    where undone.status = 'unknown'
), freed as (
    delete from gateway.once_keys where delivery_id = any (array (select id from ended))
), removed as (
    delete from gateway.processed_events
    where ctid = any (array (select place from sorted where is_over))
    returning route
), emptied as (
    update gateway.processed_events set payload_id = null, payload_until = null
    where ctid = any (array (select place from sorted where is_emptied and not is_over))
    returning route
), unfiled as (
    delete from gateway.payloads
    where id = any (array (select payload_id from sorted where is_over or is_emptied))
      and until = any (array (
          select payload_until from sorted
          where (is_over or is_emptied) and payload_until > (now() at time zone 'UTC')::date))
)
select (select count(*) from removed) as keys, (select count(*) from emptied) as payloads;

-- name: count_prunable
-- What hold_events and prune_events would forget of the next events behind a mark, and changes nothing.
with walked as materialized (
    select received_at, route, event_id, payload_until
    from gateway.processed_events
    where received_at < now() - $1::interval and (received_at, route, event_id) > ($2, $3, $4)
    order by received_at, route, event_id
    limit $5
), judged as materialized (
    select coalesce(d.ended_at, w.received_at) < now() - kept.key as is_over,
           coalesce(d.ended_at, w.received_at) < now() - kept.payload and w.payload_until
               > gateway.forget_on(coalesce(d.ended_at, w.received_at), kept.payload) as is_emptied
    from walked w
    join unnest($6::text[], $7::interval[], $8::interval[]) as kept (route, key, payload)
      using (route)
    cross join lateral (
        select bool_or(status in ('pending', 'running', 'dead')) as unfinished,
               max(finished_at) as ended_at
        from gateway.deliveries
        where route = w.route and event_id = w.event_id
    ) d
    where d.unfinished is not true
)
select w.received_at, w.route, w.event_id, (select count(*) from walked) as walked,
       (select count(*) from judged where is_over) as keys,
       (select count(*) from judged where is_emptied and not is_over) as payloads
from walked w
order by w.received_at desc, w.route desc, w.event_id desc
limit 1;

-- name: count_expired
-- Dead letters and rows of the audit that expire_dead and expire_audit would forget, and changes nothing
-- (deliveries_dead, audit_at).
select (
    select count(*)
    from unnest($1::text[], $2::interval[]) as kept (route, dead)
    cross join lateral (
        select from gateway.deliveries d
        where d.status = 'dead' and d.finished_at < now() - kept.dead
          and coalesce(d.route = kept.route, true)
    ) d
) as dead, (
    select count(*)
    from gateway.audit
    where at < now() - $3::interval
      and (select min(at) < now() - $3::interval - interval '1 day' from gateway.audit)
) as audit;

-- name: list_routes
-- Routes that have events, in the configuration or not (primary key, one probe each).
with recursive routes as (
    (select route from gateway.processed_events order by route limit 1)
    union all
    select next.route
    from routes r
    cross join lateral (
        select route from gateway.processed_events where route > r.route order by route limit 1
    ) next
)
select route from routes order by route;
