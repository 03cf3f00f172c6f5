-- name: find_job
-- A job of a queue with its deliveries, one row each (primary key, deliveries_route_event_id_handler_key).
-- One that waits for its turn is due when it gets it, and not before its delay is over.
select e.type, e.received_at, d.handler, d.status, d.attempts, d.error, d.finished_at,
       coalesce(nullif(d.due_at, 'infinity'), d.not_before) as due_at
from gateway.processed_events e
left join gateway.deliveries d on d.route = e.route and d.event_id = e.event_id
where e.route = $1 and e.event_id = $2
order by d.id;
