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
