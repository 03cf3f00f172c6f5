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
