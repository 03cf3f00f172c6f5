-- name: replay
-- A fresh round of attempts, now, with its audit row. Refused while running, and once the body is gone.
-- One with an order key runs now if it has the turn, else when it gets it (advance). With $4 its effects of unknown
-- outcome are ordered, too (retry_effects). Those that were done are never made again.
with kept as materialized (
    select id from gateway.deliveries where id = $1 and gateway.hold_payload(route, event_id)
), replayed as (
    update gateway.deliveries d
    set status = 'pending', attempts = 0, losses = 0, conflicts = 0, error = null, finished_at = null,
        not_before = null, cause = null,
        due_at = case when d.order_key is null or d.status = 'pending' and d.due_at < 'infinity'
                      then now() else 'infinity' end
    from kept
    where d.id = kept.id and d.status in ('pending', 'done', 'dead', 'discarded')
    returning d.id, d.route, d.event_id, d.handler, d.order_key
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, reason)
    select $2, 'replay', id, route, event_id, $3 from replayed
), ordered as (
    update gateway.effects e set status = 'begun', unknown_at = coalesce(e.unknown_at, now())
    from replayed r
    where $4 and e.delivery_id = r.id and e.made_by is null
      and (e.status = 'unknown' or e.status = 'begun' and e.unknown_at is null)
    returning e.delivery_id, e.name
), noted_effects as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, effect, reason)
    select $2, 'retry effect', r.id, r.route, r.event_id, o.name, $3
    from ordered o
    join replayed r on r.id = o.delivery_id
)
select r.id, r.route, r.handler, r.order_key, f.kept as effects_kept, f.unknown as effects_unknown
from replayed r
cross join lateral (
    select count(*) filter (where status = 'done') as kept, count(*) filter (
        where made_by is null and (status = 'unknown' or status = 'begun' and unknown_at is null)) as unknown
    from gateway.effects  -- as they were before this statement
    where delivery_id = r.id
) f;

-- name: count_effects_of
-- Effects of a delivery that were done, and whose outcome is unknown, without those of which a retry is ordered (effects_pkey).
select count(*) filter (where status = 'done') as kept,
       count(*) filter (
           where made_by is null and (status = 'unknown' or status = 'begun' and unknown_at is null)) as unknown
from gateway.effects
where delivery_id = $1;

-- name: discard
-- Gives up what waits or is dead, with its audit row. Refused in every other state (primary key).
with discarded as (
    update gateway.deliveries
    set status = 'discarded', finished_at = now()
    where id = $1 and status in ('pending', 'dead')
    returning id, route, event_id, handler, order_key
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, reason)
    select $2, 'discard', id, route, event_id, $3 from discarded
), listed as (  -- calls that may have been done, and retries that were ordered: no run makes them now
    update gateway.effects e set status = 'unknown', unknown_at = now()
    from discarded d
    where e.delivery_id = d.id and e.status = 'begun' and e.made_by is null
)
select id, route, handler, order_key from discarded;
