-- name: find_subject
-- Walks on through the events of an account, oldest first (processed_events_account).
select received_at, route, event_id
from gateway.processed_events
where account = $1 and (received_at, route, event_id) > ($2, $3, $4)
  and coalesce(route = $5, true)
order by received_at, route, event_id
limit $6;

-- name: count_subject
-- How some events stand that have something left to erase (primary keys).
select e.route, e.event_id, d.pending, d.dead, d.running > 0 as is_running
from unnest($1::text[], $2::text[]) as k (route, event_id)
cross join lateral (
    select * from gateway.processed_events
    where route = k.route and event_id = k.event_id
    limit 1
) e
cross join lateral (
    select count(*) filter (where status = 'pending') as pending,
           count(*) filter (where status = 'dead') as dead,
           count(*) filter (where status = 'running') as running,
           coalesce(bool_or(gateway.holds_details(id, error, order_key)), false) as is_told
    from gateway.deliveries
    where route = e.route and event_id = e.event_id
) d
where e.account is not null or d.is_told
   or exists (select from gateway.payloads p where p.id = e.payload_id and p.until = e.payload_until);

-- name: hold_subject
-- Holds events against a replay, which takes a share of its event first, and against a prune. What
-- another holds is passed over and tried again: who waits for nobody takes part in no deadlock.
select k.route, k.event_id, held.event_id is not null as is_held
from unnest($1::text[], $2::text[]) as k (route, event_id)
cross join lateral (
    select event_id from gateway.processed_events
    where route = k.route and event_id = k.event_id
    limit 1
) there
left join lateral (
    select event_id from gateway.processed_events
    where route = k.route and event_id = k.event_id
    limit 1
    for update skip locked
) held on true;

-- name: hold_deliveries
-- Then their deliveries, against a lease.
select d.id
from unnest($1::text[], $2::text[]) as k (route, event_id)
cross join lateral (
    select id from gateway.deliveries
    where route = k.route and event_id = k.event_id
    for update skip locked
) d;

-- name: erase_events
-- Of events that are held, with those of their deliveries that are: leaves the key, and takes what came
-- and what was said of it. What waits or is dead is given up, since it cannot run without a payload. One
-- that runs right now, or is in another's hands, is left alone, and so is one of which nothing is left.
-- What a handler did once per key stays done. A statement of its own, as prune_events is.
with subject as materialized (
    select e.route, e.event_id, e.ctid as place, d.ids, d.is_running is true as is_running,
           d.is_held is false as is_locked,
           e.payload_id, e.payload_until,
           e.account is not null or d.is_told is true or exists (
               select from gateway.payloads p where p.id = e.payload_id and p.until = e.payload_until
           ) as is_left
    from unnest($1::text[], $2::text[]) as k (route, event_id)
    cross join lateral (
        select *, ctid from gateway.processed_events
        where route = k.route and event_id = k.event_id
        limit 1
    ) e
    cross join lateral (
        select array_agg(id order by id) as ids, bool_or(status = 'running') as is_running,
               bool_and(id = any ($3::bigint[])) as is_held,
               bool_or(gateway.holds_details(id, error, order_key)) as is_told
        from gateway.deliveries
        where route = e.route and event_id = e.event_id
    ) d
), taken as materialized (
    select * from subject where is_left and not is_running and not is_locked
), theirs as materialized (
    select d.id, d.route, d.event_id, d.handler, d.order_key, d.status, d.error is not null as has_error,
           d.status in ('pending', 'dead') as is_open
    from gateway.deliveries d
    where d.id = any (array (select unnest(ids) from taken))
), ended as (
    update gateway.deliveries d
    set status = case when d.status in ('pending', 'dead') then 'discarded' else d.status end,
        finished_at = case when d.status in ('pending', 'dead') then now() else d.finished_at end,
        error = null, order_key = null, cause = null
    where d.id = any (array (select id from theirs))
), untold as (
    update gateway.attempts set error = null, sealed = null, key_id = null
    where delivery_id = any (array (select id from theirs)) and error is not null
), forgotten as (
    update gateway.effects  -- without its payload, one of unknown outcome cannot be made again
    set result = null, sealed = null, key_id = null, name = gateway.erased(name), key = null, error = null,
        status = case when status = 'unknown' then 'begun' else status end, unknown_at = null
    where delivery_id = any (array (select id from theirs)) and name not like 'erased:%'
), unshared as (  -- events with the same key have the result of the call, too
    update gateway.effects set result = null, sealed = null, key_id = null
    where made_by = any (array (select id from theirs)) and delivery_id <> all (array (select id from theirs))
), unnamed as (
    update gateway.audit set effect = gateway.erased(effect)
    where delivery_id = any (array (select id from theirs)) and effect not like 'erased:%'
), kept as (
    update gateway.once_keys set key = gateway.erased(key)
    where delivery_id = any (array (select id from theirs)) and finished_at is not null
      and key not like 'erased:%'
), freed as (
    delete from gateway.once_keys
    where delivery_id = any (array (select id from theirs)) and finished_at is null
), emptied as (
    update gateway.processed_events
    set account = null, object_id = null, payload_id = null, payload_until = null
    where ctid = any (array (select place from taken))  -- which are held, and stay where they are
), unfiled as (
    delete from gateway.payloads p using taken t
    where p.id = t.payload_id and p.until = t.payload_until
), closed as (
    update gateway.gaps g set handle = ''
    from taken t
    where g.route = t.route and g.event_id = t.event_id and g.status in ('recovered', 'unrecoverable')
), silenced as (  -- an alert quotes the last error of its handler, and does not say whose it was
    update gateway.alert_messages m
    set message = jsonb_set(m.message::jsonb, '{data,error}', 'null')::json
    where (m.route, m.handler) in (select route, handler from theirs where has_error)
      and m.message #>> '{data,error}' is not null
), discards as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, reason)
    select $4, 'discard', id, route, event_id, $5 from theirs where is_open
), noted as (
    insert into gateway.audit (actor, action, route, event_id, reason)
    select $4, 'erase', route, event_id, $5 from taken
)
select s.route, s.event_id, s.is_running, s.is_locked, t.event_id is not null as is_erased,
       coalesce(o.pending, 0) as pending, coalesce(o.dead, 0) as dead,
       coalesce(o.handlers, '{}') as handlers, coalesce(o.order_keys, '{}') as order_keys
from subject s
left join taken t using (route, event_id)
left join lateral (
    select count(*) filter (where status = 'pending') as pending,
           count(*) filter (where status = 'dead') as dead,
           array_agg(handler) filter (where is_open and order_key is not null) as handlers,
           array_agg(order_key) filter (where is_open and order_key is not null) as order_keys
    from theirs
    where theirs.route = s.route and theirs.event_id = s.event_id
) o on true
where s.is_left;

-- name: scrub_words
-- What people have said, and asked for, in whose words an account is named: as a whole word, and not
-- where it is a part of another's. Also where their events are long forgotten, so that the audit is read
-- from end to end: once for an erasure.
with named as materialized (
    select '(?<!\w)' || regexp_replace($1, '(\W)', '\\\1', 'g') || '(?!\w)' as pattern
), bulk as (
    update gateway.bulk_orders
    set filter = filter || (
            select coalesce(jsonb_object_agg(key, '(erased)'), '{}')
            from jsonb_each_text(filter), named
            where key in ('account', 'error') and value ~ pattern
        ),
        reason = case when reason ~ pattern then null else reason end
    from named
    where reason ~ pattern or filter ->> 'account' ~ pattern or filter ->> 'error' ~ pattern
), pauses as (
    update gateway.pauses set reason = null from named where reason ~ pattern
), gaps as (
    update gateway.gaps set handle = ''
    where handle = $1 and status in ('recovered', 'unrecoverable')
)
update gateway.audit set reason = null from named where reason ~ pattern;

-- name: find_erasure
-- When an event was erased, by whom and why (audit_erased).
select at, actor, reason
from gateway.audit
where action = 'erase' and route = $1 and event_id = $2
order by id desc
limit 1;
