-- name: lock_names
-- One process at a time resolves and keeps names: the lock ends with the transaction.
select pg_advisory_xact_lock($1);

-- name: list_names
-- All names of what was renamed, the current one of each identity last.
select kind, name, identity
from gateway.names
order by seen_at, kind, name;

-- name: keep_names
-- Keeps what names stand for (primary key). A name changes its identity only if nothing has run under the former identity; the
-- last one to be seen is the current one.
insert into gateway.names (kind, name, identity, seen_at)
select kind, name, identity, case when is_current then clock_timestamp() else '-infinity' end
from unnest($1::text[], $2::text[], $3::text[], $4::boolean[]) as n (kind, name, identity, is_current)
order by kind, name
on conflict (kind, name) do update
set identity = excluded.identity, seen_at = greatest(names.seen_at, excluded.seen_at);

-- name: find_route_history
-- Which of these routes have events (primary key).
select n.name
from unnest($1::text[]) as n (name)
where exists (select from gateway.processed_events e where e.route = n.name);

-- name: find_handler_history
-- Which of these handlers have run since the oldest event that is still known, or have deliveries that wait, on any
-- route (deliveries_due, one probe for each route), or have a delivery of one of the newest events: what a worker
-- counted last may be lost with it (processed_events_newest, deliveries_route_event_id_handler_key).
select n.name
from unnest($1::text[]) as n (name)
where exists (
    select from gateway.totals t
    where t.handler = n.name and t.n > 0
      and t.last_at >= (select min(received_at) from gateway.processed_events)
) or exists (
    select
    from (select route from gateway.totals union select route from gateway.handlers) r
    cross join lateral (
        select from gateway.deliveries d
        where d.route = r.route and d.handler = n.name and d.status = 'pending'
        limit 1
    ) waiting
) or exists (
    select
    from (
        select route, event_id from gateway.processed_events
        order by received_at desc, route desc, event_id desc
        limit 1000
    ) e
    cross join lateral (
        select from gateway.deliveries d
        where d.route = e.route and d.event_id = e.event_id and d.handler = n.name
        limit 1
    ) known
);
