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
-- Under the current lease only. Begins the effect, or with $4 begins it again if its outcome is unknown. Without $4 an
-- effect that was begun before becomes unknown: this run goes on without it.
with held as (
    select id from gateway.deliveries where id = $1 and lease_token = $2 for share
), begun as (
    insert into gateway.effects as e (delivery_id, name, token)
    select id, $3, $2 from held
    on conflict (delivery_id, name) do update
    set token = case when $4 then excluded.token else e.token end,
        calls = e.calls + case when $4 then 1 else 0 end,
        begun_at = case when $4 then now() else e.begun_at end,
        status = case when $4 then 'begun' else 'unknown' end,
        error = case when $4 then null else e.error end,
        unknown_at = case when $4 then null else coalesce(e.unknown_at, now()) end
    where e.status <> 'done'
    returning status, begun_at, xmax = 0 or $4 as is_ours
)
select exists (select from held) as is_held, coalesce(b.is_ours, false) as is_begun,
       coalesce(b.status, e.status) as status, e.result, e.sealed, coalesce(b.begun_at, e.begun_at) as begun_at
from (values (1)) as one
left join begun b on true
left join gateway.effects e on e.delivery_id = $1 and e.name = $3;

-- name: finish_effect
-- The call was done, with this result. Repeated if the answer to this statement got lost.
update gateway.effects
set status = 'done', result = $4, sealed = $5, key_id = $6, finished_at = now(), error = null, unknown_at = null
where delivery_id = $1 and name = $2 and token = $3
returning true;

-- name: release_effect
-- The call was not done. The row stays if an earlier call may have been done.
delete from gateway.effects
where delivery_id = $1 and name = $2 and token = $3 and status = 'begun' and calls = 1;

-- name: note_effect_error
-- How a call ended whose outcome is unknown.
update gateway.effects set error = $4
where delivery_id = $1 and name = $2 and token = $3 and status = 'begun';

-- name: mark_effects_unknown
-- The handler caught the errors of these calls and has returned: its delivery completes without their outcomes.
with held as (
    select id from gateway.deliveries where id = $1 and lease_token = $2 for share
), marked as (
    update gateway.effects e set status = 'unknown', unknown_at = now()
    from held
    where e.delivery_id = held.id and e.token = $2 and e.name = any ($3::text[]) and e.status = 'begun'
)
select exists (select from held);

-- name: list_unknown_effects
-- Effects of unknown outcome, newest first, from behind a cursor (effects_unknown). At most $13 are looked at; a last
-- row without a type says how far that was.
with walked as materialized (
    select delivery_id, name, calls, error, begun_at, unknown_at
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
      and coalesce(w.name = $8, true)
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
-- Effects that were unknown by a moment, by route, handler, name and how the call ended, the most first
-- (effects_unknown). Each row has the totals of all groups.
select d.route, d.handler, f.name as effect, null::text as type, f.error, count(*) as count,
       min(f.unknown_at) as first_at, max(f.unknown_at) as last_at, max(f.delivery_id) as delivery_id,
       (sum(count(*)) over ())::bigint as total,
       (sum(count(*) filter (where not gateway.has_payload(e.payload_id, e.payload_until))) over ())::bigint
           as without_payload
from gateway.effects f
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
  and coalesce(f.name = $8, true)
group by d.route, d.handler, f.name, f.error
order by count desc, last_at desc, 1, 2, 3
limit $10;

-- name: walk_unknown_effects
-- Walks on from a cursor through effects that were unknown when an order began (effects_unknown), and returns which
-- of them match.
select w.delivery_id, w.name, w.unknown_at,
       coalesce(d.route = $1, true)
       and coalesce(e.type like $2, $2 is null)
       and coalesce(d.handler = $3, true)
       and w.unknown_at >= coalesce($4, timestamptz '-infinity')
       and coalesce(e.account = $6, $6 is null)
       and ($7::text is null or coalesce(w.error, '') ilike $7)
       and coalesce(w.name = $8, true) as is_matching
from (
    select delivery_id, name, error, unknown_at
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
-- Forgets calls of unknown outcome and replays their deliveries, so that each is made again: an order by a person, with
-- its audit row. Effects that were done stay. Nothing happens to a delivery that runs, or has lost its payload.
-- In the order of ids, so that two orders never wait for each other in a circle.
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
), forgotten as (
    delete from gateway.effects e
    using kept k
    where e.delivery_id = k.delivery_id and e.name = k.name and e.status = 'unknown'
      and e.delivery_id = any (array (select id from held))
    returning e.delivery_id, e.name
), replayed as (
    update gateway.deliveries d
    set status = 'pending', attempts = 0, losses = 0, error = null, finished_at = null,
        not_before = null, cause = null,
        due_at = case when d.order_key is null or d.status = 'pending' and d.due_at < 'infinity'
                      then now() else 'infinity' end
    where d.id = any (array (select delivery_id from forgotten)) and d.status || '' <> 'running'
    returning d.id, d.route, d.event_id, d.handler, d.order_key
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, effect, reason, order_id)
    select $3, 'retry effect', r.id, r.route, r.event_id, f.name, $4, $5
    from forgotten f
    join replayed r on r.id = f.delivery_id
)
select r.id, r.route, r.handler, r.order_key
from kept k
left join forgotten f on f.delivery_id = k.delivery_id and f.name = k.name
left join replayed r on r.id = f.delivery_id
order by r.id;

-- name: confirm_effects
-- A person knows that these calls were done, or does not want them: they count as done, without a result. With audit
-- rows (primary key).
with confirmed as (
    update gateway.effects e
    set status = 'done', finished_at = now(), unknown_at = null
    from unnest($1::bigint[], $2::text[]) as i (delivery_id, name)
    where e.delivery_id = i.delivery_id and e.name = i.name and e.status = 'unknown'
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
-- The effects of unknown outcome of one delivery, or one of them (primary key).
select name from gateway.effects
where delivery_id = $1 and status = 'unknown' and coalesce(name = $2, true)
order by name;
