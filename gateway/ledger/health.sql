-- name: find_unsettled
-- Handlers for which something waits or is dead, at most so many (deliveries_due, deliveries_dead_of, one
-- probe for each).
with recursive waiting as (
    (select route, handler, 1 as n from gateway.deliveries
     where status = 'pending' order by route, handler limit 1)
    union all
    select following.route, following.handler, w.n + 1
    from waiting w
    cross join lateral (
        select d.route, d.handler from gateway.deliveries d
        where d.status = 'pending' and (d.route, d.handler) > (w.route, w.handler)
        order by d.route, d.handler limit 1
    ) following
    where w.n < $1
), dead as (
    (select route, handler, 1 as n from gateway.deliveries
     where status = 'dead' order by route, handler limit 1)
    union all
    select following.route, following.handler, e.n + 1
    from dead e
    cross join lateral (
        select d.route, d.handler from gateway.deliveries d
        where d.status = 'dead' and (d.route, d.handler) > (e.route, e.handler)
        order by d.route, d.handler limit 1
    ) following
    where e.n < $1
)
select route, handler from waiting
union
select route, handler from dead
order by 1, 2
limit $1;

-- name: count_unsettled
-- What waits and what is dead of these handlers, up to so many of each, the newest of the dead, and since when the
-- oldest is due (deliveries_due, deliveries_suspect, deliveries_dead_of).
select k.route, k.handler, due.n as due, later.n as later, held.n as held, suspect.n as suspects, dead.n as dead,
       dead.lately as dead_lately, oldest.due_at as oldest_due_at
from unnest($1::text[], $2::text[]) as k (route, handler)
cross join lateral (
    select count(*) as n from (
        select from gateway.deliveries d
        where d.status = 'pending' and d.route = k.route and d.handler = k.handler and d.due_at <= now()
        limit $3
    ) few
) due
cross join lateral (
    select min(d.due_at) as due_at from gateway.deliveries d
    where d.status = 'pending' and d.route = k.route and d.handler = k.handler and d.due_at <= now()
) oldest
cross join lateral (
    select count(*) as n from (
        select from gateway.deliveries d
        where d.status = 'pending' and d.route = k.route and d.handler = k.handler
          and d.due_at > now() and d.due_at < 'infinity'
        limit $3
    ) few
) later
cross join lateral (
    select count(*) as n from (
        select from gateway.deliveries d
        where d.status = 'pending' and d.route = k.route and d.handler = k.handler and d.due_at = 'infinity'
        limit $3
    ) few
) held
cross join lateral (
    select count(*) as n from (
        select from gateway.deliveries d
        where d.status = 'pending' and d.workers_lost >= 2 and d.route = k.route and d.handler = k.handler
        limit $3
    ) few
) suspect
cross join lateral (
    select count(*) as n, count(*) filter (where finished_at > now() - $4::interval) as lately from (
        select d.finished_at from gateway.deliveries d
        where d.status = 'dead' and d.route = k.route and d.handler = k.handler
        order by d.finished_at desc
        limit $3
    ) few
) dead;

-- name: count_unknown_effects
-- Effects of unknown outcome by handler, the newest up to so many (effects_unknown).
select d.route, d.handler, count(*) as n
from (
    select delivery_id from gateway.effects where status = 'unknown' order by unknown_at desc limit $1
) few
cross join lateral (select route, handler from gateway.deliveries where id = few.delivery_id limit 1) d
group by d.route, d.handler;

-- name: count_running
-- What runs, up to so many (deliveries_leased).
select route, handler, count(*) as n
from (select route, handler from gateway.deliveries where status = 'running' limit $1) few
group by route, handler;

-- name: count_gaps
-- Events that never came, up to so many: those that are open, and the newest that are not (gaps_open,
-- gaps_closed).
select route, status, count(*) as n
from (
    (select route, status from gateway.gaps where status in ('missing', 'asked') limit $1)
    union all
    (select route, status from gateway.gaps where closed_at is not null order by closed_at desc limit $1)
) few
group by route, status;

-- name: measure_server
-- The time, the version, connections, the schema, and alerts that do not get through. Backends are counted as everybody
-- may see them.
select now() as at, current_setting('server_version') as version,
       (select sum(numbackends)::integer from pg_stat_database) as connections,
       current_setting('max_connections')::integer as max_connections,
       (select max(version) from gateway.migrations) as schema_version,
       (select count(*) from gateway.alert_messages where status <> 'sent' and error is not null) as unheard;

-- name: list_workers
-- Workers that were seen lately, but not the processes in which they run suspects.
select id, host, pid, version, handlers, started_at, seen_at
from gateway.workers
where seen_at >= now() - $1::interval and not isolated
order by started_at;
