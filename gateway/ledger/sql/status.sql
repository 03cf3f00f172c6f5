-- name: count_unfinished
-- Waiting, running and dead deliveries per handler, at most so many of each: a person reads no more,
-- and a backlog of millions must not be slow to look at. Handlers that have some waiting are found by
-- skipping through deliveries_due; of the dead the newest are counted (deliveries_dead).
with recursive waiting as (
    (select route, handler from gateway.deliveries
     where status = 'pending' order by route, handler limit 1)
    union all
    select following.route, following.handler
    from waiting
    cross join lateral (
        select d.route, d.handler from gateway.deliveries d
        where d.status = 'pending' and (d.route, d.handler) > (waiting.route, waiting.handler)
        order by d.route, d.handler limit 1
    ) following
)
select route, handler, 'pending' as status, counted.n, oldest.due_at as oldest_at, turns.n as waiting_turn,
       0 as lately
from waiting
cross join lateral (
    select count(*) as n from (
        select from gateway.deliveries d
        where d.status = 'pending' and d.route = waiting.route and d.handler = waiting.handler
        limit $1
    ) few
) counted
cross join lateral (
    select min(d.due_at) as due_at from gateway.deliveries d
    where d.status = 'pending' and d.route = waiting.route and d.handler = waiting.handler
      and d.due_at <= now()
) oldest
cross join lateral (
    select count(*) as n from (
        select from gateway.deliveries d
        where d.status = 'pending' and d.route = waiting.route and d.handler = waiting.handler
          and d.due_at = 'infinity'
        limit $1
    ) few
) turns
union all
select route, handler, 'running', count(*), min(leased_at), 0, 0
from (select route, handler, leased_at from gateway.deliveries where status = 'running' limit $1) few
group by route, handler
union all
select route, handler, 'dead', count(*), min(finished_at), 0,
       count(*) filter (where finished_at > now() - $2::interval)
from (
    select route, handler, finished_at from gateway.deliveries
    where status = 'dead' order by finished_at desc, id desc limit $1
) few
group by route, handler
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

-- name: describe_server
-- The server, and what the ledger takes of it. Backends are counted as everybody may see them.
select current_setting('server_version') as version,
       current_setting('max_connections')::integer as max_connections,
       (select sum(numbackends)::integer from pg_stat_database) as connections,
       (select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'gateway' and c.relkind = 'r') as size_bytes;

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
