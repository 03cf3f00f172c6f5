-- name: has_events
-- Whether anything ever came in by this route (primary key, which `exists` alone would not take).
select count(*) > 0
from (select from gateway.processed_events where route = $1 order by event_id limit 1) one;

-- name: find_oldest_dead
-- The dead letter that has waited for longest (deliveries_dead).
select route, handler, finished_at
from gateway.deliveries
where status = 'dead'
order by finished_at, id
limit 1;

-- name: count_overdue
-- Of the oldest events (processed_events_newest): those whose keys should have been forgotten this long
-- ago, and which nothing keeps.
select count(*) as n, min(e.received_at) as oldest_at
from (
    select route, event_id, received_at
    from gateway.processed_events
    order by received_at, route, event_id
    limit 100
) e
join unnest($1::text[], $2::interval[]) as kept (route, key) using (route)
where e.received_at < now() - kept.key - $3::interval
  and not exists (
      select from gateway.deliveries d
      where d.route = e.route and d.event_id = e.event_id
        and (d.status in ('pending', 'running', 'dead')
             or d.finished_at >= now() - kept.key - $3::interval)
  );
