-- name: add_tallies
-- Adds counts to their minute, which was a while ago, to its hour, and to the totals; forgets what is too
-- old. Those with an empty route are of all routes together: minutes and hours have them too, to look back over.
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
where minute >= $1 and minute <= now() and route <> ''
group by route, handler, outcome
order by route, handler, outcome;

-- name: sum_times
-- How many took how long since a moment, per route or handler, of these outcomes, bucket by bucket (primary key).
-- One sum for each bucket that there is: to take the arrays apart costs three times as much.
select route, handler, array[
    sum(times[1]), sum(times[2]), sum(times[3]), sum(times[4]), sum(times[5]), sum(times[6]), sum(times[7]),
    sum(times[8]), sum(times[9]), sum(times[10]), sum(times[11]), sum(times[12]), sum(times[13]), sum(times[14]),
    sum(times[15]), sum(times[16]), sum(times[17]), sum(times[18]), sum(times[19]), sum(times[20]), sum(times[21]),
    sum(times[22]), sum(times[23]), sum(times[24]), sum(times[25]), sum(times[26]), sum(times[27]), sum(times[28]),
    sum(times[29]), sum(times[30]), sum(times[31]), sum(times[32]), sum(times[33]), sum(times[34]), sum(times[35]),
    sum(times[36]), sum(times[37]), sum(times[38]), sum(times[39]), sum(times[40]), sum(times[41]), sum(times[42]),
    sum(times[43]), sum(times[44]), sum(times[45]), sum(times[46]), sum(times[47]), sum(times[48]), sum(times[49]),
    sum(times[50]), sum(times[51]), sum(times[52]), sum(times[53]), sum(times[54]), sum(times[55]), sum(times[56]),
    sum(times[57]), sum(times[58]), sum(times[59]), sum(times[60]), sum(times[61]), sum(times[62]), sum(times[63]),
    sum(times[64]), sum(times[65]), sum(times[66]), sum(times[67]), sum(times[68]), sum(times[69]), sum(times[70]),
    sum(times[71]), sum(times[72]), sum(times[73]), sum(times[74]), sum(times[75]), sum(times[76]), sum(times[77]),
    sum(times[78]), sum(times[79]), sum(times[80]), sum(times[81]), sum(times[82]), sum(times[83]), sum(times[84]),
    sum(times[85]), sum(times[86]), sum(times[87]), sum(times[88]), sum(times[89]), sum(times[90]), sum(times[91]),
    sum(times[92]), sum(times[93]), sum(times[94]), sum(times[95]), sum(times[96]), sum(times[97]), sum(times[98]),
    sum(times[99]), sum(times[100]), sum(times[101]), sum(times[102]), sum(times[103]), sum(times[104]),
    sum(times[105]), sum(times[106]), sum(times[107]), sum(times[108]), sum(times[109]), sum(times[110]),
    sum(times[111]), sum(times[112]), sum(times[113]), sum(times[114]), sum(times[115]), sum(times[116]),
    sum(times[117]), sum(times[118]), sum(times[119]), sum(times[120]), sum(times[121])
]::bigint[] as times
from gateway.tallies
where minute >= $1 and minute <= now() and route <> '' and outcome = any ($2::text[])
group by route, handler
order by route, handler;

-- name: list_totals
-- What happened since counting began, per route or handler and outcome.
select route, handler, outcome, n, last_at
from gateway.totals
order by route, handler, outcome;

-- name: history_start
-- Where a span begins that ends with this minute or hour: at the beginning of one, in UTC.
select date_trunc($1, now(), 'UTC') - $2::interval;

-- name: history_by_minute
-- What happened in each minute since a moment; all routes together are under an empty one (primary key).
select minute as at, handler = '' as is_request, outcome, n
from gateway.tallies
where minute >= $1 and minute <= now() and route = '';

-- name: history_by_hour
-- The same by the hour.
select hour as at, handler = '' as is_request, outcome, n
from gateway.tally_hours
where hour >= $1 and hour <= now() and route = '';

-- name: times_by_minute
-- How many requests, and how many runs, took how long since a moment (primary key).
select handler = '' as is_request, place - 1 as bucket, sum(took)::bigint as n
from gateway.tallies
cross join unnest(times) with ordinality as t (took, place)
where minute >= $1 and minute <= now() and route = '' and outcome = any ($2::text[]) and took > 0
group by handler = '', place;

-- name: times_by_hour
-- The same by the hour.
select handler = '' as is_request, place - 1 as bucket, sum(took)::bigint as n
from gateway.tally_hours
cross join unnest(times) with ordinality as t (took, place)
where hour >= $1 and hour <= now() and route = '' and outcome = any ($2::text[]) and took > 0
group by handler = '', place;
