-- name: try_turn
-- Whether it is one's turn at some work, until the transaction ends.
select pg_try_advisory_xact_lock($1);

-- name: take_turn
-- The same, waited for.
select pg_advisory_xact_lock($1);

-- name: tell_causes
-- Of what the oldest of those died of whom nobody has told it yet (deliveries_cause).
with letters as materialized (
    select id, route, handler, coalesce(left(error, 300), '') as error
    from gateway.deliveries
    where status = 'dead' and cause is null
    order by finished_at, id
    limit $1
    for update skip locked
), named as materialized (
    select *, gateway.common_error(error) as common from letters
), known as (
    insert into gateway.causes as c (route, handler, common, error)
    select route, handler, common, case when count(distinct error) = 1 then min(error) end
    from named
    group by route, handler, common
    order by route, handler, common
    on conflict (route, handler, common) do update
    set error = case when c.error = excluded.error then c.error end
    returning id, route, handler, common
), told as (
    update gateway.deliveries d set cause = k.id
    from named n
    join known k using (route, handler, common)
    where d.id = n.id
    returning d.id
)
select count(*) from told;

-- name: forget_causes
-- Those of which nobody is dead any more (deliveries_cause).
delete from gateway.causes c
where not exists (select from gateway.deliveries d where d.status = 'dead' and d.cause = c.id);

-- name: count_causes
-- How many died of what, the most first (deliveries_cause, by which alone they are counted).
select d.cause, c.route, c.handler,
       regexp_replace(coalesce(c.error, c.common), '[[:cntrl:]]+', '…', 'g') as error,
       d.n as count, d.first_at, d.last_at,
       (sum(d.n) over ())::bigint as total
from (
    select cause, count(*) as n, min(finished_at) as first_at, max(finished_at) as last_at
    from gateway.deliveries
    where status = 'dead'
    group by cause
) d
left join gateway.causes c on c.id = d.cause
where coalesce(c.route = $1, $1 is null) and coalesce(c.handler = $2, $2 is null)
  and coalesce(d.cause = $3, $3 is null)
order by d.n desc, d.last_at desc
limit $4;
