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

-- name: list_sizes
-- What each table of the ledger takes, with its indexes and all its days, and about how many rows it has, as
-- Postgres last counted them, if it did.
select coalesce(p.relname, c.relname) as name, sum(pg_total_relation_size(c.oid))::bigint as bytes,
       sum(case when c.reltuples >= 0 then c.reltuples end)::bigint as about_rows
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join pg_inherits i on i.inhrelid = c.oid
left join pg_class p on p.oid = i.inhparent
where n.nspname = 'gateway' and c.relkind = 'r'
group by 1
order by bytes desc, name;
