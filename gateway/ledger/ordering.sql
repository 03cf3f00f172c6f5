-- name: keep_policies
-- What the functions of the ledger must know of handlers whose deliveries take turns, or did.
insert into gateway.handlers (route, handler, on_dead)
select * from unnest($1::text[], $2::text[], $3::text[])
on conflict (route, handler) do update set on_dead = excluded.on_dead
where handlers.on_dead <> excluded.on_dead;

-- name: advance
-- Gives the turn to the first of each key that waits for it; returns what may run now. In the order of
-- their locks, so that two of these wait for each other and never in a circle.
select gateway.advance(k.route, k.handler, k.key) as id
from (
    select distinct gateway.turn_lock(route, handler, key), route, handler, key
    from unnest($1::text[], $2::text[], $3::text[]) as k (route, handler, key)
    order by 1
) k;

-- name: find_stuck
-- Walks on through the keys for which something waits (deliveries_held), whoever has a handler for it,
-- and tells those of which nothing has the turn: whoever should have given it was killed before it could.
with recursive held as (
    (select route, handler, order_key, id, 1 as n
     from gateway.deliveries
     where (route, handler, order_key) > ($1, $2, $3) and order_key is not null
       and status = 'pending' and due_at = 'infinity'
     order by route, handler, order_key, id
     limit 1)
    union all
    select next.route, next.handler, next.order_key, next.id, h.n + 1
    from held h
    cross join lateral (
        select route, handler, order_key, id
        from gateway.deliveries
        where (route, handler, order_key) > (h.route, h.handler, h.order_key)
          and order_key is not null and status = 'pending' and due_at = 'infinity'
        order by route, handler, order_key, id
        limit 1
    ) next
    where h.n < $4
)
select h.route, h.handler, h.order_key as key, not exists (
    select from gateway.deliveries d
    where d.route = h.route and d.handler = h.handler and d.order_key = h.order_key
      and d.status in ('pending', 'running') and d.due_at < 'infinity'
) and not exists (
    select from gateway.handlers p
    where p.route = h.route and p.handler = h.handler and p.on_dead = 'block' and exists (
        select from gateway.deliveries d
        where d.route = h.route and d.handler = h.handler and d.order_key = h.order_key
          and d.status = 'dead' and d.id < h.id)
) as is_stuck
from held h
order by h.n;
