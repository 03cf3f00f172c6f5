-- name: count_unfinished
-- Waiting, running and dead deliveries per handler, from their partial indexes.
select route, handler, status, count(*) as n, min(due_at) filter (where due_at <= now()) as oldest_at,
       count(*) filter (where due_at = 'infinity') as waiting_turn
from gateway.deliveries
where status = 'pending'
group by route, handler, status
union all
select route, handler, status, count(*), min(leased_at), 0
from gateway.deliveries
where status = 'running'
group by route, handler, status
union all
select route, handler, status, count(*), min(finished_at), 0
from gateway.deliveries
where status = 'dead'
group by route, handler, status
order by route, handler, status;

-- name: count_blocked
-- Keys that a dead delivery blocks, with what waits behind it, per handler (deliveries_blocking,
-- deliveries_held).
select d.route, d.handler, count(*) as keys, sum(waiting.n)::bigint as waiting
from gateway.handlers h
cross join lateral (
    select distinct route, handler, order_key
    from gateway.deliveries
    where route = h.route and handler = h.handler and order_key is not null and status = 'dead'
) d
cross join lateral (
    select count(*) as n
    from gateway.deliveries w
    where w.route = d.route and w.handler = d.handler and w.order_key = d.order_key
      and w.status = 'pending' and w.due_at = 'infinity'
) waiting
where h.on_dead = 'block'
group by d.route, d.handler
order by d.route, d.handler;

-- name: list_exhausted
-- Handlers with a rate that may start nothing now, and when the next one may (primary key).
select route, handler, min(free_at) as free_at
from gateway.places
group by route, handler
having min(free_at) > now()
order by route, handler;

-- name: count_received
-- Events per route in the last while, and the newest (processed_events_received).
select route, count(*) as n, max(received_at) as last_at
from gateway.processed_events
where received_at >= now() - $1::interval
group by route
order by route;
