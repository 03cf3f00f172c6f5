-- name: count_keys
-- Under which keys something is kept, and how much, at most so many of each: found by skipping through
-- payloads_key, attempts_key and effects_key.
with recursive of_events as (
    (select key_id from gateway.payloads where key_id is not null order by key_id limit 1)
    union all
    select next.key_id from of_events k cross join lateral (
        select key_id from gateway.payloads
        where key_id is not null and key_id > k.key_id order by key_id limit 1) next
), of_attempts as (
    (select key_id from gateway.attempts where key_id is not null order by key_id limit 1)
    union all
    select next.key_id from of_attempts k cross join lateral (
        select key_id from gateway.attempts
        where key_id is not null and key_id > k.key_id order by key_id limit 1) next
), of_effects as (
    (select key_id from gateway.effects where key_id is not null order by key_id limit 1)
    union all
    select next.key_id from of_effects k cross join lateral (
        select key_id from gateway.effects
        where key_id is not null and key_id > k.key_id order by key_id limit 1) next
), of_rejected as (  -- a small ring
    select key_id, count(*) as n from gateway.rejected
    where key_id is not null and size > 0 group by key_id
), used as (
    select key_id from of_events union select key_id from of_attempts union select key_id from of_effects
    union select key_id from of_rejected
)
select used.key_id, e.n as events, a.n as attempts, f.n as effects, coalesce(r.n, 0) as rejected
from used
cross join lateral (select count(*) as n from (
    select from gateway.payloads where key_id = used.key_id limit $1) few) e
cross join lateral (select count(*) as n from (
    select from gateway.attempts where key_id = used.key_id limit $1) few) a
cross join lateral (select count(*) as n from (
    select from gateway.effects where key_id = used.key_id limit $1) few) f
left join of_rejected r on r.key_id = used.key_id
order by used.key_id;

-- name: find_events_under
-- The payloads of the next events under a key (payloads_key), as many as come to so many bytes.
select route, event_id, id, body as sealed
from (
    select route, event_id, id, body,
           sum(octet_length(body)) over (order by id) - octet_length(body) as before
    from (
        select route, event_id, id, body from gateway.payloads
        where key_id = $1 and id > $2 and coalesce(route = $3, true)
        order by id
        limit $4
    ) page
) sized
where before < $5
order by id;

-- name: find_attempts_under
-- The next attempts under a key (attempts_key), as many as come to so many bytes.
select delivery_id, number, until, sealed
from (
    select delivery_id, number, until, sealed,
           sum(octet_length(sealed)) over (order by delivery_id, number) - octet_length(sealed) as before
    from (
        select a.delivery_id, a.number, a.until, a.sealed
        from gateway.attempts a
        where a.key_id = $1 and (a.delivery_id, a.number) > ($2, $3)
          and ($4::text is null or (select d.route = $4 from gateway.deliveries d where d.id = a.delivery_id))
        order by a.delivery_id, a.number
        limit $5
    ) page
) sized
where before < $6
order by delivery_id, number;

-- name: find_effects_under
-- The next effects under a key (effects_key), as many as come to so many bytes.
select delivery_id, name, sealed
from (
    select delivery_id, name, sealed,
           sum(octet_length(sealed)) over (order by delivery_id, name) - octet_length(sealed) as before
    from (
        select f.delivery_id, f.name, f.sealed
        from gateway.effects f
        where f.key_id = $1 and (f.delivery_id, f.name) > ($2, $3)
          and ($4::text is null or (select d.route = $4 from gateway.deliveries d where d.id = f.delivery_id))
        order by f.delivery_id, f.name
        limit $5
    ) page
) sized
where before < $6
order by delivery_id, name;

-- name: find_rejected_under
-- The next refused requests under a key, in a small ring, as many as come to so many bytes.
select id, route, at, body as sealed
from (
    select id, route, at, body, sum(octet_length(body)) over (order by id) - octet_length(body) as before
    from (
        select id, route, at, body from gateway.rejected
        where key_id = $1 and body is not null and id > $2 and coalesce(route = $3, true)
        order by id
        limit $4
    ) page
) sized
where before < $5
order by id;

-- name: reseal_rejected
-- Refused requests under another key (primary key).
update gateway.rejected r set body = i.sealed, key_id = $4
from unnest($1::bigint[], $2::bytea[]) as i (id, sealed)
where r.id = i.id and r.key_id = $3 and r.body is not null
returning r.id;

-- name: reseal_events
-- Payloads of events as they are kept from now on, where they are still under the key that they were read under
-- (primary keys): one that was erased, rekeyed or filed elsewhere meanwhile stays as it is.
with held as materialized (
    select e.payload_id, e.payload_until, i.sealed
    from unnest($1::text[], $2::text[], $3::bytea[]) as i (route, event_id, sealed)
    cross join lateral (
        select payload_id, payload_until from gateway.processed_events
        where route = i.route and event_id = i.event_id
        limit 1
        for no key update
    ) e
)
update gateway.payloads p set body = held.sealed, key_id = $5
from held
where p.id = held.payload_id and p.until = held.payload_until and p.key_id = $4
returning p.event_id;

-- name: reseal_attempts
-- The same of errors (attempts_pkey).
update gateway.attempts a set sealed = i.sealed, key_id = $6
from unnest($1::bigint[], $2::integer[], $3::date[], $4::bytea[]) as i (delivery_id, number, until, sealed)
where a.delivery_id = i.delivery_id and a.number = i.number and a.until = i.until and a.key_id = $5
returning a.delivery_id;

-- name: reseal_effects
-- The same of results (effects_pkey).
with held as materialized (
    select f.place, i.sealed
    from unnest($1::bigint[], $2::text[], $3::bytea[]) as i (delivery_id, name, sealed)
    cross join lateral (
        select ctid as place from gateway.effects
        where delivery_id = i.delivery_id and name = i.name and key_id = $4
        limit 1
        for no key update
    ) f
)
update gateway.effects f set sealed = held.sealed, key_id = $5
from held
where f.ctid = held.place
returning f.delivery_id;

-- name: note_rekey
-- Who had everything put under the first key.
insert into gateway.audit (actor, action, route, reason) values ($1, 'rekey', $2, $3);

-- name: find_past
-- Walks on through the events of a route (primary key), and tells which were stored as they came.
select e.event_id, not e.sealed as is_past,
       coalesce((select octet_length(p.body) from gateway.payloads p
                 where not e.sealed and p.id = e.payload_id and p.until = e.payload_until), 0) as size
from gateway.processed_events e
where e.route = $1 and e.event_id > $2
order by e.event_id
limit $3;

-- name: find_unsealed
-- Of these routes, those of which events were stored as they came, as far as a look at the oldest that may
-- have a payload tells (processed_events_received).
select distinct e.route
from (
    select route, sealed
    from gateway.processed_events
    where received_at >= now() - $2::interval
    order by received_at, route, event_id
    limit $3
) e
where e.route = any ($1::text[]) and not e.sealed
order by e.route;

-- name: read_past
-- Events of a route that were stored as they came (primary key).
select e.event_id, e.payload_id, e.payload_until, p.headers, p.body, e.digest, e.guard
from unnest($2::text[]) as k (event_id)
cross join lateral (
    select * from gateway.processed_events
    where route = $1 and event_id = k.event_id and not sealed
    limit 1
) e
left join lateral (
    select headers, body from gateway.payloads
    where id = e.payload_id and until = e.payload_until
    limit 1
) p on true;

-- name: read_past_deliveries
-- Their deliveries (deliveries_route_event_id_handler_key).
select d.id, d.event_id, d.handler, d.status, d.order_key, d.error
from unnest($2::text[]) as k (event_id)
cross join lateral (
    select * from gateway.deliveries where route = $1 and event_id = k.event_id
) d
order by d.id;

-- name: read_past_attempts
-- The attempts of some deliveries, and where they are filed.
select delivery_id, number, until, error, sealed
from gateway.attempts
where delivery_id = any ($1::bigint[])
order by delivery_id, number;

-- name: list_once_keys
-- For which keys some deliveries act, or have; the key of an effect has its name before it (once_keys_delivery).
select handler, key
from gateway.once_keys
where delivery_id = any ($1::bigint[]) and key not like 'digest:%' and key not like 'erased:%';

-- name: seal_past_events
-- Of events that are held: their digests, keyed. Bytes that came again since are guarded by the event that
-- brought them then (processed_events_guard).
with held as materialized (
    select e.place, i.digest, i.guard
    from unnest($2::text[], $3::bytea[], $4::bytea[]) as i (event_id, digest, guard)
    cross join lateral (
        select ctid as place from gateway.processed_events
        where route = $1 and event_id = i.event_id and not sealed
        limit 1
    ) e
)
update gateway.processed_events e
set sealed = true, digest = held.digest,
    guard = case when (
                select true from gateway.processed_events o
                where o.route = $1 and o.guard = held.guard limit 1) is null
            then held.guard end
from held
where e.ctid = held.place
returning e.event_id;

-- name: seal_past_payloads
-- What came with them, sealed (payloads_pkey).
update gateway.payloads
set headers = '{}', body = ($3::bytea[])[array_position($1::bigint[], id)], key_id = $4
where id = any ($1::bigint[]) and until = any ($2::date[]);  -- as a join, it may be one with all of these days

-- name: seal_past_deliveries
-- Of deliveries that are held: their errors without text, their keys as digests. One that waits asks for
-- its turn anew (advance), since another may have it under the digest.
with held as materialized (
    select d.place, i.error, i.order_key
    from unnest($1::bigint[], $2::text[], $3::text[]) as i (id, error, order_key)
    cross join lateral (select ctid as place from gateway.deliveries where id = i.id limit 1) d
)
update gateway.deliveries d
set error = held.error, order_key = held.order_key,
    due_at = case when d.status = 'pending' and d.order_key is distinct from held.order_key
                  then 'infinity' else d.due_at end
from held
where d.ctid = held.place;

-- name: seal_past_attempts
-- Errors of attempts, sealed (attempts_pkey).
update gateway.attempts a set error = i.error, sealed = i.sealed, key_id = $6
from unnest($1::bigint[], $2::integer[], $3::date[], $4::text[], $5::bytea[])
     as i (delivery_id, number, until, error, sealed)
where a.delivery_id = i.delivery_id and a.number = i.number and a.until = i.until;

-- name: seal_past_effects
-- Results of effects, sealed, and names that hold a key with its digest (effects_pkey).
with held as materialized (
    select f.place, i.new_name, i.key, i.sealed
    from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bytea[])
         as i (delivery_id, name, new_name, key, sealed)
    cross join lateral (
        select ctid as place from gateway.effects
        where delivery_id = i.delivery_id and name = i.name limit 1
        for no key update
    ) f
)
update gateway.effects f
set name = held.new_name, key = held.key, result = null, sealed = coalesce(held.sealed, f.sealed),
    key_id = case when held.sealed is null then f.key_id else $6 end
from held
where f.ctid = held.place;

-- name: move_once_keys
-- Who acts for a key acts for its digest (primary key). Where another does so already, the one counts
-- that has finished.
with moved as (
    delete from gateway.once_keys o
    using unnest($2::text[], $3::text[], $4::text[]) as i (handler, key, digest)
    where o.route = $1 and o.handler = i.handler and o.key = i.key
    returning o.route, o.handler, i.digest, o.delivery_id, o.token, o.finished_at
)
insert into gateway.once_keys as o (route, handler, key, delivery_id, token, finished_at)
select * from moved
on conflict (route, handler, key) do update
set delivery_id = excluded.delivery_id, token = excluded.token, finished_at = excluded.finished_at
where o.finished_at is null and excluded.finished_at is not null;

-- name: silence_alerts
-- Alerts quote the last error of a handler: those of before its route was encrypted.
update gateway.alert_messages m
set message = jsonb_set(m.message::jsonb, '{data,error}', 'null')::json
where m.route = any ($1::text[]) and m.message #>> '{data,error}' is not null
  and m.message #>> '{data,error}' not like '%its text is encrypted';
