-- name: add_tallies
-- Adds counts to their minute, which was a while ago, to its hour, and to the totals; forgets what is too
-- old. Those with an empty route are of all routes together: the hours have them too, to look back over.
-- In the order of their keys: two processes that crossed would wait for each other.
with counted as materialized (
    select route, handler, outcome, n, times::integer[] as times
    from unnest($3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[])
        as c (route, handler, outcome, n, times)
    order by route, handler, outcome
), summed as (
    insert into gateway.totals as t (route, handler, outcome, n, last_at)
    select route, handler, outcome, n, now() - $1::interval from counted where route <> ''
    on conflict (route, handler, outcome) do update
    set n = t.n + excluded.n, last_at = greatest(t.last_at, excluded.last_at)
), by_hour as (
    insert into gateway.tally_hours as t (hour, route, handler, outcome, n, times)
    select date_trunc('hour', now() - $1::interval, 'UTC'), route, handler, outcome, n, times
    from counted
    on conflict (hour, route, handler, outcome) do update
    set n = t.n + excluded.n,
        times = array (
            select coalesce(a, 0) + coalesce(b, 0)
            from unnest(t.times, excluded.times) with ordinality as u (a, b, place)
            order by place
        )
), forgotten_hours as (
    delete from gateway.tally_hours
    where ctid = any (array (
        select ctid
        from gateway.tally_hours
        where hour < now() - $8::interval
        order by hour
        limit 1000
        for update skip locked
    ))
), forgotten as (
    delete from gateway.tallies
    where ctid = any (array (
        select ctid
        from gateway.tallies
        where minute < now() - $2::interval
        order by minute
        limit 1000
        for update skip locked
    ))
)
insert into gateway.tallies as t (minute, route, handler, outcome, n, times)
select date_trunc('minute', now() - $1::interval), route, handler, outcome, n, times
from counted
where route <> ''
on conflict (minute, route, handler, outcome) do update
set n = t.n + excluded.n,
    times = array (
        select coalesce(a, 0) + coalesce(b, 0)
        from unnest(t.times, excluded.times) with ordinality as u (a, b, place)
        order by place
    );

-- name: sum_tallies
-- What happened since one moment, and since a later one, per route or handler and outcome (primary key).
-- Bounded on both sides, so that a plan for any moment expects few rows, and takes the index.
select route, handler, outcome, sum(n)::bigint as n,
       coalesce(sum(n) filter (where minute >= $2), 0)::bigint as lately
from gateway.tallies
where minute >= $1 and minute <= now()
group by route, handler, outcome
order by route, handler, outcome;

-- name: sum_times
-- How long it took since a moment, per route or handler, of these outcomes (primary key).
select route, handler, place - 1 as bucket, sum(took)::bigint as n
from gateway.tallies
cross join unnest(times) with ordinality as t (took, place)
where minute >= $1 and minute <= now() and outcome = any ($2::text[]) and took > 0
group by route, handler, place
order by route, handler, place;

-- name: list_totals
-- What happened since counting began, per route or handler and outcome.
select route, handler, outcome, n, last_at
from gateway.totals
order by route, handler, outcome;
