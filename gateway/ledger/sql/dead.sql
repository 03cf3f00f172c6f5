-- name: list_dead
-- Dead letters, newest first, from behind a mark (deliveries_dead), with filters as in list_events.
select d.id as delivery_id, d.route, d.event_id, e.type, e.account, d.handler, d.status, d.attempts,
       d.error, d.created_at, d.finished_at
from gateway.deliveries d
cross join lateral (  -- as a plain join, it may be one with all events
    select type, account from gateway.processed_events
    where route = d.route and event_id = d.event_id
    limit 1
) e
where d.status = 'dead'
  and coalesce(d.route = $1, true)
  and coalesce(e.type like $2, true)
  and coalesce(d.handler = $3, true)
  and d.finished_at >= coalesce($4, timestamptz '-infinity')
  and d.finished_at < coalesce($5, timestamptz 'infinity')
  and coalesce(e.account = $6, $6 is null)
  and ($7::text is null or d.error ilike $7)
  and (d.finished_at, d.id) < (coalesce($9, timestamptz 'infinity'), coalesce($10::bigint, 0))
order by d.finished_at desc, d.id desc
limit $8;

-- name: group_dead
-- Dead letters until a moment by route, handler and what their errors have in common, the most first
-- (deliveries_dead). What stands in quotes, and words with a digit (numbers, ids), differ between errors
-- of one cause; a status, as in HTTP 503, is one. Equal errors are put together first, and only where
-- there may be a status is it looked for behind each word: either takes longer than all the rest.
-- Where all of a group are equal, the error is shown as it is: the key of a KeyError is what matters.
-- Each row tells of all groups how many letters there are, and how many have no payload.
with letters as materialized (
    select d.route, d.handler, left(d.error, 300) as error, count(*) as n,
           count(*) filter (where e.has_payload is not true) as without_payload,
           min(d.finished_at) as first_at, max(d.finished_at) as last_at, max(d.id) as delivery_id
    from gateway.deliveries d
    left join lateral (
        select type, account, body is not null as has_payload from gateway.processed_events
        where route = d.route and event_id = d.event_id
        limit 1
    ) e on true
    where d.status = 'dead'
      and coalesce(d.route = $1, true)
      and coalesce(e.type like $2, $2 is null)
      and coalesce(d.handler = $3, true)
      and d.finished_at >= coalesce($4, timestamptz '-infinity')
      and d.finished_at < coalesce($5, timestamptz 'infinity')
      and coalesce(e.account = $6, $6 is null)
      and coalesce(d.error ilike $7, $7 is null)
      and d.finished_at <= $8
    group by 1, 2, 3
), named as (
    select *, regexp_replace(
           regexp_replace(
               error,
               '"[^"]*(?:"|$)|`[^`]*(?:`|$)|(?<!\w)''[^'']*(?:''(?!\w)|$)|[[:cntrl:]]+|'
               || case when error like '%HTTP %' then '(?<!HTTP |[[:alnum:]_-])' else '' end
               || '[[:alnum:]_-]*\d[[:alnum:]_-]*',
               '…', 'g'),
           '…(?:\W{0,2}…)+', '…', 'g') as common
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
