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
-- Under the current lease, and only there. Begins it; where its end is unknown, again if asked to.
with held as (
    select id from gateway.deliveries where id = $1 and lease_token = $2 for share
), begun as (
    insert into gateway.effects as e (delivery_id, name, token)
    select id, $3, $2 from held
    on conflict (delivery_id, name) do update
    set token = excluded.token, calls = e.calls + 1, begun_at = now()
    where e.status = 'begun' and $4
    returning true
)
select exists (select from held) as is_held, exists (select from begun) as is_begun, e.status, e.result,
       e.sealed, e.begun_at
from (values (1)) as one
left join gateway.effects e on e.delivery_id = $1 and e.name = $3;

-- name: finish_effect
-- It happened, and this is what came of it. Again, where the answer to this got lost.
update gateway.effects
set status = 'done', result = $4, sealed = $5, key_id = $6, finished_at = now()
where delivery_id = $1 and name = $2 and token = $3
returning true;

-- name: release_effect
-- It certainly did not happen. Kept where an earlier call may have come through.
delete from gateway.effects
where delivery_id = $1 and name = $2 and token = $3 and status = 'begun' and calls = 1;
