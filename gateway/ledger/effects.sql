-- name: reserve_once
-- Under the current lease: this delivery is to act for the key, unless another has done so, or is at it.
-- One that was lost, or is dead, holds nothing; one that has finished keeps its place through a replay,
-- and also where it was erased. $6 is what the key was before its route was encrypted.
with held as (
    select id from gateway.deliveries where id = $4 and lease_token = $5 for share
), reserved as (
    insert into gateway.once_keys as o (route, handler, key, delivery_id, token)
    select $1, $2, $3, id, $5 from held
    where not exists (
        select from gateway.once_keys
        where route = $1 and handler = $2 and key in (gateway.erased($3), gateway.erased($6))
          and finished_at is not null)
      and not exists (
        select from gateway.once_keys f
        where f.route = $1 and f.handler = $2 and f.key = $6
          and (f.finished_at is not null or exists (
               select from gateway.deliveries d
               where d.id = f.delivery_id and d.lease_token = f.token and d.id <> $4)))
    on conflict (route, handler, key) do update
    set delivery_id = excluded.delivery_id, token = excluded.token
    where o.delivery_id = excluded.delivery_id
       or o.finished_at is null and not exists (
           select from gateway.deliveries d where d.id = o.delivery_id and d.lease_token = o.token)
    returning true
)
select exists (select from held) as is_held, exists (select from reserved) as is_ours,
       o.finished_at is not null as is_done, d.event_id
from (values (1)) as one
left join lateral (
    select delivery_id, finished_at from gateway.once_keys
    where route = $1 and handler = $2
      and key in ($3, gateway.erased($3), $6, gateway.erased($6))
    order by finished_at is null
    limit 1
) o on true
left join gateway.deliveries d on d.id = o.delivery_id;

-- name: keep_once
-- In the handler's own transaction: it is done for this key, unless another run has taken it over, or
-- one that was done has been erased meanwhile.
update gateway.once_keys set finished_at = now()
where route = $1 and handler = $2 and key = $3 and delivery_id = $4 and token = $5
  and not exists (
      select from gateway.once_keys
      where route = $1 and handler = $2 and finished_at is not null
        and key in (gateway.erased($3), $6, gateway.erased($6)))
returning true;

-- name: begin_effect
-- Under the current lease only. Begins the effect. One that was begun before and has no known outcome is begun again if $4 or
-- if a person has requested that (retry_effects), and else stays as it is. $5 is the key of one that is once per key.
with held as (
    select id from gateway.deliveries where id = $1 and lease_token = $2 for share
), begun as (
    insert into gateway.effects as e (delivery_id, name, token, key)
    select id, $3, $2, $5 from held
    on conflict (delivery_id, name) do update
    set token = excluded.token, calls = e.calls + 1, begun_at = now(), status = 'begun', error = null, unknown_at = null
    where ($4 or e.status = 'begun' and e.unknown_at is not null) and e.status <> 'done' and e.key is not distinct from excluded.key
    returning status
)
select exists (select from held) as is_held, b.status is not null as is_begun,
       e.status, e.result, e.sealed, e.begun_at, e.error,
       e.status = 'begun' and e.unknown_at is not null as is_requested,
       e.key is distinct from $5 and e.delivery_id is not null as is_another
from (values (1)) as one
left join begun b on true
left join gateway.effects e on e.delivery_id = $1 and e.name = $3;

-- name: reserve_effect
-- Under the current lease: this delivery has the effect of a key, unless one has it already (primary key). $6 is the key as
-- it was before its route was encrypted. finished_at: the reservation outlives its run, and an erasure.
with held as (
    select id from gateway.deliveries where id = $4 and lease_token = $5 for share
), reserved as (
    insert into gateway.once_keys (route, handler, key, delivery_id, token, finished_at)
    select $1, $2, $3, id, $5, now() from held
    where not exists (
        select from gateway.once_keys
        where route = $1 and handler = $2 and key in (gateway.erased($3), $6, gateway.erased($6)))
    on conflict do nothing
)
select exists (select from held);

-- name: hold_effect_key
-- Which delivery has the effect of a key: held against the others that want it (primary key). None: another one holds it, or
-- forgets it, this very moment. One of before an erasure, or before the route was encrypted, comes first.
select key, delivery_id
from gateway.once_keys
where route = $1 and handler = $2 and key in ($3, gateway.erased($3), $4, gateway.erased($4))
order by key = $3
limit 1
for update skip locked;

-- name: read_effect_of_key
-- The effect of the delivery that has it ($1), held, and what this delivery ($2) has under its name (primary keys). A statement
-- of its own: it must see what was committed before the key was held.
select d.event_id, d.lease_token = e.token is true as is_running,
       e.name, e.status, e.calls, e.error, e.begun_at, e.result, e.sealed, e.delivery_id,
       e.status = 'begun' and e.unknown_at is not null as is_requested,
       e.name is null and exists (
           select from gateway.effects
           where delivery_id = $1 and name in ($3, gateway.erased($3), $4, gateway.erased($4))
       ) as is_changing,
       own.name as own_name, own.status as own_status, own.made_by as own_made_by,
       own.result as own_result, own.sealed as own_sealed, own.key as own_key
from (values (1)) as one
left join gateway.deliveries d on d.id = $1
left join lateral (
    select * from gateway.effects
    where delivery_id = $1 and name in ($3, gateway.erased($3), $4, gateway.erased($4))
    order by name = $3 desc
    limit 1
    for update skip locked
) e on true
left join lateral (
    select * from gateway.effects
    where delivery_id = $2 and name in ($3, $4)
    order by name = $3 desc
    limit 1
) own on true;

-- name: take_effect_key
-- The key is held: its effect is this delivery's now.
update gateway.once_keys set delivery_id = $4, token = $5 where route = $1 and handler = $2 and key = $3;

-- name: free_effect_key
-- Takes back a reservation of this delivery (primary key).
delete from gateway.once_keys where route = $1 and handler = $2 and key = $3 and delivery_id = $4;

-- name: rename_effect
-- A name of before the route was encrypted holds the key as it came (primary key).
update gateway.effects set name = $3, key = $4 where delivery_id = $1 and name = $2;

-- name: forget_effect_link
-- What this delivery has of an effect that another one had, and has no more (primary key).
delete from gateway.effects where delivery_id = $1 and name = $2 and made_by is not null;

-- name: take_effect
-- An effect of unknown outcome whose key is held: from the delivery that had it, which keeps a link, to this one, which calls
-- again ($7), or goes on without its outcome and is listed for it when it completes.
with former as (
    update gateway.effects
    set status = 'begun', made_by = $1, token = $2, error = null, unknown_at = null
    where delivery_id = $5 and name = $6
)
insert into gateway.effects as e (delivery_id, name, key, token, status, calls, error, begun_at)
values ($1, $3, $4, $2, 'begun', $8::integer + case when $7 then 1 else 0 end, case when $7 then null else $9::text end,
        case when $7 then now() else $10::timestamptz end)
on conflict (delivery_id, name) do update
set token = excluded.token, status = 'begun', calls = excluded.calls, error = excluded.error,
    begun_at = excluded.begun_at, unknown_at = null, made_by = null;

-- name: link_effect
-- Another delivery has made the call, with this result, or goes on without its outcome ($6 is false).
insert into gateway.effects as e
    (delivery_id, name, key, token, made_by, status, calls, begun_at, finished_at, result, sealed, key_id)
values ($1, $3, $4, $2, $5, case when $6 then 'done' else 'begun' end, 0, $7, case when $6 then now() end, $8, $9, $10)
on conflict (delivery_id, name) do update
set token = excluded.token, made_by = excluded.made_by, status = excluded.status, calls = 0, error = null, unknown_at = null,
    begun_at = excluded.begun_at, finished_at = excluded.finished_at, result = excluded.result, sealed = excluded.sealed,
    key_id = excluded.key_id;

-- name: finish_effect
-- The call was done, with this result. Repeated if the answer to this statement got lost.
update gateway.effects
set status = 'done', result = $4, sealed = $5, key_id = $6, finished_at = now(), error = null, unknown_at = null
where delivery_id = $1 and name = $2 and token = $3
returning true;

-- name: release_effect
-- The call was not done. The row stays if an earlier call may have been done; if a person had requested this one ($8), it is as it
-- was before, with the error of the earlier call ($9), and the next run calls. With the row goes its key, if it is once per key.
with released as (
    delete from gateway.effects
    where delivery_id = $1 and name = $2 and token = $3 and status = 'begun' and unknown_at is null and calls = 1
    returning delivery_id
), restored as (
    update gateway.effects
    set calls = calls - 1, error = $9, unknown_at = now()
    where $8 and delivery_id = $1 and name = $2 and token = $3 and status = 'begun' and unknown_at is null and calls > 1
    returning delivery_id
), freed as (
    delete from gateway.once_keys o
    using released r
    where o.route = $4 and o.handler = $5 and o.key in ($6, gateway.erased($6), $7, gateway.erased($7))
      and o.delivery_id = r.delivery_id
)
select true from released
union all
select true from restored;

-- name: note_effect_error
-- How a call ended whose outcome is unknown.
update gateway.effects set error = $4
where delivery_id = $1 and name = $2 and token = $3 and status = 'begun';

-- name: mark_effects_unknown
-- A delivery completes without the outcomes of these calls: its last run did not make them again (unknown="skip"),
-- caught their errors, or did not ask for them any more, even if a person had requested them.
with held as (
    select id from gateway.deliveries where id = $1 and lease_token = $2 for share
), marked as (
    update gateway.effects e set status = 'unknown', unknown_at = now()
    from held
    where e.delivery_id = held.id and e.status = 'begun' and e.made_by is null
)
select exists (select from held);

-- name: mark_own_effects
-- The same in the transaction of the run (primary key): its settlement proves the lease, in the same commit.
update gateway.effects set status = 'unknown', unknown_at = now()
where delivery_id = $1 and status = 'begun' and made_by is null;

-- name: list_unknown_effects
-- Effects of unknown outcome, newest first, from behind a cursor (effects_unknown). At most $13 are looked at; a last
-- row without a type says how far that was.
with walked as materialized (
    select delivery_id, name, coalesce(left(name, -length(' per ' || key)), name) as effect, calls, error, begun_at, unknown_at
    from gateway.effects
    where status = 'unknown'
      and unknown_at >= coalesce($4, timestamptz '-infinity')
      and unknown_at <= coalesce($5, timestamptz 'infinity')
      and (unknown_at, delivery_id, name)
          < (coalesce($10, timestamptz 'infinity'), coalesce($11::bigint, 0), coalesce($12::text, ''))
    order by unknown_at desc, delivery_id desc, name desc
    limit $13
), matching as (
    select w.delivery_id, w.name, d.route, d.event_id, e.type, e.account, d.handler, d.status as delivery_status,
           w.calls, w.error, w.begun_at, w.unknown_at,
           gateway.has_payload(e.payload_id, e.payload_until) as can_retry
    from walked w
    cross join lateral (
        select route, event_id, handler, status from gateway.deliveries where id = w.delivery_id limit 1
    ) d
    cross join lateral (
        select type, account, payload_id, payload_until from gateway.processed_events
        where route = d.route and event_id = d.event_id
        limit 1
    ) e
    where coalesce(d.route = $1, true)
      and coalesce(e.type like $2, true)
      and coalesce(d.handler = $3, true)
      and coalesce(w.unknown_at < $5, true)
      and coalesce(e.account = $6, $6 is null)
      and ($7::text is null or coalesce(w.error, '') ilike $7)
      and ($8::text is null or $8 in (w.name, w.effect))
    order by w.unknown_at desc, w.delivery_id desc, w.name desc
    limit $9
)
select *
from (
    select * from matching
    union all
    (select delivery_id, name, null, null, null, null, null, null, calls, null, begun_at, unknown_at, null
     from walked
     where (select count(*) from walked) >= $13
     order by unknown_at, delivery_id, name
     limit 1)
) as found
order by type is null, unknown_at desc, delivery_id desc, name desc;

-- name: group_unknown_effects
-- Effects that were unknown by a moment, by route, handler, name (without its key) and how the call ended, the most first
-- (effects_unknown). Each row has the totals of all groups.
select d.route, d.handler, f.effect, null::text as type, f.error, count(*) as count,
       min(f.unknown_at) as first_at, max(f.unknown_at) as last_at, max(f.delivery_id) as delivery_id,
       (sum(count(*)) over ())::bigint as total,
       (sum(count(*) filter (where not gateway.has_payload(e.payload_id, e.payload_until))) over ())::bigint
           as without_payload
from (
    select *, coalesce(left(name, -length(' per ' || key)), name) as effect from gateway.effects
) f
cross join lateral (
    select route, event_id, handler from gateway.deliveries where id = f.delivery_id limit 1
) d
cross join lateral (
    select type, account, payload_id, payload_until from gateway.processed_events
    where route = d.route and event_id = d.event_id
    limit 1
) e
where f.status = 'unknown' and f.unknown_at <= $9
  and f.unknown_at >= coalesce($4, timestamptz '-infinity')
  and f.unknown_at < coalesce($5, timestamptz 'infinity')
  and coalesce(d.route = $1, true)
  and coalesce(e.type like $2, true)
  and coalesce(d.handler = $3, true)
  and coalesce(e.account = $6, $6 is null)
  and ($7::text is null or coalesce(f.error, '') ilike $7)
  and ($8::text is null or $8 in (f.name, f.effect))
group by d.route, d.handler, f.effect, f.error
order by count desc, last_at desc, 1, 2, 3
limit $10;

-- name: walk_unknown_effects
-- Walks on from a cursor through effects that were unknown when a bulk operation began (effects_unknown), and returns which
-- of them match.
select w.delivery_id, w.name, w.unknown_at,
       coalesce(d.route = $1, true)
       and coalesce(e.type like $2, $2 is null)
       and coalesce(d.handler = $3, true)
       and w.unknown_at >= coalesce($4, timestamptz '-infinity')
       and coalesce(e.account = $6, $6 is null)
       and ($7::text is null or coalesce(w.error, '') ilike $7)
       and ($8::text is null or $8 in (w.name, w.effect)) as is_matching
from (
    select delivery_id, name, coalesce(left(name, -length(' per ' || key)), name) as effect, error, unknown_at
    from gateway.effects
    where status = 'unknown' and (unknown_at, delivery_id, name) > ($9, $10, $11)
      and unknown_at <= $12 and unknown_at < coalesce($5, timestamptz 'infinity')
    order by unknown_at, delivery_id, name
    limit $13
) w
cross join lateral (
    select route, event_id, handler from gateway.deliveries where id = w.delivery_id limit 1
) d
left join lateral (
    select type, account from gateway.processed_events
    where route = d.route and event_id = d.event_id
    limit 1
) e on true
order by w.unknown_at, w.delivery_id, w.name;

-- name: retry_effects
-- Requests calls of unknown outcome again and replays their deliveries, each with its audit row. An effect
-- that is begun and keeps its unknown_at is requested: the next run that asks for it begins it, and a delivery that completes
-- without that is listed again. Effects that were done stay. Nothing happens to a delivery that runs, or has lost its payload.
-- By ascending id, so that two of them never wait for each other in a circle.
with given as (
    select * from unnest($1::bigint[], $2::text[]) as i (delivery_id, name)
), kept as materialized (
    select i.delivery_id, i.name
    from given i
    cross join lateral (select route, event_id from gateway.deliveries where id = i.delivery_id limit 1) d
    where gateway.hold_payload(d.route, d.event_id)
), held as materialized (
    select id from gateway.deliveries
    where id = any (array (select delivery_id from kept)) and status || '' <> 'running'
    order by id
    for update
), requested as (
    update gateway.effects e set status = 'begun'
    from kept k
    where e.delivery_id = k.delivery_id and e.name = k.name and e.status = 'unknown'
      and e.delivery_id = any (array (select id from held))
    returning e.delivery_id, e.name
), replayed as (
    update gateway.deliveries d
    set status = 'pending', attempts = 0, losses = 0, conflicts = 0, error = null, finished_at = null,
        not_before = null, cause = null,
        due_at = case when d.order_key is null or d.status = 'pending' and d.due_at < 'infinity'
                      then now() else 'infinity' end
    where d.id = any (array (select delivery_id from requested)) and d.status || '' <> 'running'
    returning d.id, d.route, d.event_id, d.handler, d.order_key
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, effect, reason, order_id)
    select $3, 'retry effect', r.id, r.route, r.event_id, o.name, $4, $5
    from requested o
    join replayed r on r.id = o.delivery_id
)
select r.id, r.route, r.handler, r.order_key
from kept k
left join requested o on o.delivery_id = k.delivery_id and o.name = k.name
left join replayed r on r.id = o.delivery_id
order by r.id;

-- name: confirm_effects
-- A person knows that these calls were done, or does not want them: they count as done, without a result. So do those of which
-- a retry is requested and not begun, and those of a dead letter. With audit rows (primary key).
with confirmed as (
    update gateway.effects e
    set status = 'done', finished_at = now(), unknown_at = null
    from unnest($1::bigint[], $2::text[]) as i (delivery_id, name)
    where e.delivery_id = i.delivery_id and e.name = i.name
      and (e.status = 'unknown' or e.status = 'begun' and e.made_by is null and (
           e.unknown_at is not null
           or (select d.status from gateway.deliveries d where d.id = e.delivery_id) = 'dead'))
    returning e.delivery_id, e.name
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, effect, reason, order_id)
    select $3, 'confirm effect', d.id, d.route, d.event_id, c.name, $4, $5
    from confirmed c
    join gateway.deliveries d on d.id = c.delivery_id
)
select d.id, d.route, d.handler, null::text as order_key
from unnest($1::bigint[], $2::text[]) as i (delivery_id, name)
left join confirmed c using (delivery_id, name)
left join gateway.deliveries d on d.id = c.delivery_id
order by d.id;

-- name: find_unknown_effects
-- The effects of unknown outcome of one delivery, or those of a name, with or without its key; with $3 also those of which a
-- retry is requested and not begun, and those of a dead letter (primary keys).
select name from gateway.effects
where delivery_id = $1
  and (status = 'unknown' or $3 and status = 'begun' and made_by is null and (
       unknown_at is not null or (select d.status from gateway.deliveries d where d.id = $1) = 'dead'))
  and ($2::text is null or $2 in (name, left(name, -length(' per ' || key))))
order by name;

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
