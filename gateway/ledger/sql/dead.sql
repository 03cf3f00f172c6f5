-- name: list_dead
-- Dead letters, newest first, from behind a mark (deliveries_dead; of one cause deliveries_cause). At most
-- so many are looked at ($12), as in list_event_keys; a last row without a type says how far that was.
with walked as materialized (
    (select id, route, event_id, handler, status, attempts, error, created_at, finished_at
     from gateway.deliveries
     where status = 'dead' and $11::bigint is null
       and finished_at >= coalesce($4, timestamptz '-infinity')
       and (finished_at, id) < (coalesce($9, $5, timestamptz 'infinity'), coalesce($10::bigint, 0))
     order by finished_at desc, id desc
     limit $12)
    union all
    (select id, route, event_id, handler, status, attempts, error, created_at, finished_at
     from gateway.deliveries
     where status = 'dead' and cause = $11
       and finished_at >= coalesce($4, timestamptz '-infinity')
       and (finished_at, id) < (coalesce($9, $5, timestamptz 'infinity'), coalesce($10::bigint, 0))
     order by finished_at desc, id desc
     limit $12)
), matching as (
    select w.id as delivery_id, w.route, w.event_id, e.type, e.account, w.handler, w.status, w.attempts,
           w.error, w.created_at, w.finished_at
    from walked w
    cross join lateral (  -- as a plain join, it may be one with all events
        select type, account from gateway.processed_events
        where route = w.route and event_id = w.event_id
        limit 1
    ) e
    where coalesce(w.route = $1, true)
      and coalesce(e.type like $2, true)
      and coalesce(w.handler = $3, true)
      and coalesce(w.finished_at < $5, true)
      and coalesce(e.account = $6, $6 is null)
      and ($7::text is null or w.error ilike $7)
    order by w.finished_at desc, w.id desc
    limit $8
)
select *
from (
    select * from matching
    union all
    (select id, route, event_id, null, null, handler, status, attempts, null, created_at, finished_at
     from walked
     where (select count(*) from walked) >= $12
     order by finished_at, id
     limit 1)
) as found
order by type is null, finished_at desc, delivery_id desc;

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

-- name: group_dead
-- Dead letters until a moment by route, handler and what their errors have in common, the most first
-- (deliveries_dead). Equal errors are put together first: what they have in common takes long to tell.
-- Where all of a group are equal, the error is shown as it is: the key of a KeyError is what matters.
-- Each row tells of all groups how many letters there are, and how many have no payload. Of the newest
-- only, where so many are asked for ($11).
with letters as materialized (
    select d.route, d.handler, left(d.error, 300) as error, count(*) as n,
           count(*) filter (where e.has_payload is not true) as without_payload,
           min(d.finished_at) as first_at, max(d.finished_at) as last_at, max(d.id) as delivery_id
    from (
        select id, route, event_id, handler, error, cause, finished_at
        from gateway.deliveries
        where status = 'dead' and finished_at <= $8
          and finished_at >= coalesce($4, timestamptz '-infinity')
          and finished_at < coalesce($5, timestamptz 'infinity')
        order by finished_at desc, id desc
        limit $11
    ) d
    left join lateral (
        select e.type, e.account, gateway.has_payload(e.payload_id, e.payload_until) as has_payload
        from gateway.processed_events e
        where e.route = d.route and e.event_id = d.event_id
        limit 1
    ) e on true
    where coalesce(d.route = $1, true)
      and coalesce(e.type like $2, $2 is null)
      and coalesce(d.handler = $3, true)
      and coalesce(e.account = $6, $6 is null)
      and coalesce(d.error ilike $7, $7 is null)
      and coalesce(d.cause = $10, $10::bigint is null)
    group by 1, 2, 3
), named as (
    select *, gateway.common_error(error) as common
    from letters
)
select route, handler, null::text as type,
       case when count(*) = 1 then regexp_replace(min(error), '[[:cntrl:]]+', '…', 'g')
            else common end as error,
       sum(n)::bigint as count, min(first_at) as first_at, max(last_at) as last_at,
       max(delivery_id) as delivery_id,
       (sum(sum(n)) over ())::bigint as total,
       (sum(sum(without_payload)) over ())::bigint as without_payload
from named
group by route, handler, common
order by count desc, last_at desc, 1, 2, 4
limit $9;

-- name: has_dead_beyond
-- Whether more than so many died in a time (deliveries_dead, from which alone they are counted).
select exists (
    select from gateway.deliveries
    where status = 'dead' and finished_at <= $3
      and finished_at >= coalesce($1, timestamptz '-infinity')
      and finished_at < coalesce($2, timestamptz 'infinity')
    order by finished_at desc, id desc
    offset $4
);
