-- name: pause
-- Keeps a handler, or all of a route (''), from being run, with its audit row. Again: a new reason.
with paused as (
    insert into gateway.pauses as p (route, handler, actor, reason)
    values ($1, $2, $3, $4)
    on conflict (route, handler) do update set actor = excluded.actor, reason = excluded.reason
    returning p.since
), noted as (
    insert into gateway.audit (actor, action, route, handler, reason)
    values ($3, 'pause', $1, nullif($2, ''), $4)
)
select since, since = now() as is_new from paused;

-- name: resume
-- Ends a pause, with its audit row; no row where there was none.
with resumed as (
    delete from gateway.pauses where route = $1 and handler = $2
    returning route, handler, actor, reason, since
), noted as (
    insert into gateway.audit (actor, action, route, handler, reason)
    select $3, 'resume', route, nullif(handler, ''), $4 from resumed
)
select route, nullif(handler, '') as handler, actor, reason, since from resumed;

-- name: list_pauses
-- What is paused, by whom, since when and why.
select route, nullif(handler, '') as handler, actor, reason, since
from gateway.pauses
order by route, handler nulls first;

-- name: find_leasing
-- Transactions that lease right now, and may have looked at the pauses before there was one: a statement
-- locks its tables first, then looks, and says what it is in its first line (QUERIES). Others read the
-- pauses too, such as a backup, and for long. What may not be seen may lease.
select distinct l.virtualtransaction as id
from pg_locks l
join pg_stat_activity a using (pid)
where l.locktype = 'relation' and l.relation = 'gateway.pauses'::regclass
  and l.database = (select oid from pg_database where datname = current_database())
  and (a.query like '-- lease\_%' or a.query is null or a.query = '<insufficient privilege>');

-- name: until_begun
-- How long until all that was leased of a handler, or of a route (''), has begun or was handed back
-- (deliveries_leased).
select case when count(*) = 0 then '0'
            else least(greatest(max(leased_at) + $3::interval - clock_timestamp(), '0'), $3) end
from gateway.deliveries
where status = 'running' and coalesce(route = $1, true) and $2 in ('', handler);

-- name: find_paused
-- Which of these handlers are paused.
select m.route, m.handler
from unnest($1::text[], $2::text[]) as m (route, handler)
where exists (select from gateway.pauses p where p.route = m.route and p.handler in (m.handler, ''));

-- name: list_known_handlers
-- Handlers that a worker has or had, or for which something waits (deliveries_due, one probe each).
with recursive waiting as (
    (select route, handler
     from gateway.deliveries
     where status = 'pending'
     order by route, handler
     limit 1)
    union all
    select next.route, next.handler
    from waiting w
    cross join lateral (
        select route, handler
        from gateway.deliveries
        where status = 'pending' and (route, handler) > (w.route, w.handler)
        order by route, handler
        limit 1
    ) next
)
select route, handler from gateway.handlers
union
select route, handler from waiting
order by 1, 2;

-- name: count_held
-- What runs of a handler, or of all of a route (''), and what waits (deliveries_leased, deliveries_due).
select (
    select count(*) from gateway.deliveries
    where status = 'running' and coalesce(route = $1, true) and $2 in ('', handler)
) as running, (
    select count(*) from gateway.deliveries
    where status = 'pending' and route = $1 and $2 in ('', handler)
) as waiting;

-- name: find_resumed
-- A few of each handler that are due: enough to wake a worker for it (deliveries_due).
select d.id
from unnest($1::text[], $2::text[]) as h (route, handler)
cross join lateral (
    select id
    from gateway.deliveries
    where route = h.route and handler = h.handler and status = 'pending' and due_at <= now()
    order by due_at, id
    limit $3
) d;
