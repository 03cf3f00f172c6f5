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
