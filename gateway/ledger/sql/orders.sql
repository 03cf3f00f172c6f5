-- name: replay
-- A fresh round of attempts, now, with its audit row. Refused while running, and once the body is gone.
-- One with an order key runs now if it has the turn, else when it gets it (advance).
with kept as materialized (
    select id from gateway.deliveries where id = $1 and gateway.hold_payload(route, event_id)
), replayed as (
    update gateway.deliveries d
    set status = 'pending', attempts = 0, losses = 0, error = null, finished_at = null,
        not_before = null, cause = null,
        due_at = case when d.order_key is null or d.status = 'pending' and d.due_at < 'infinity'
                      then now() else 'infinity' end
    from kept
    where d.id = kept.id and d.status in ('pending', 'done', 'dead', 'discarded')
    returning d.id, d.route, d.event_id, d.handler, d.order_key
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, reason)
    select $2, 'replay', id, route, event_id, $3 from replayed
)
select id, route, handler, order_key from replayed;

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
)
select id, route, handler, order_key from discarded;
