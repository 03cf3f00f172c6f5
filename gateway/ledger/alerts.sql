-- name: start_evaluation
-- Whether this worker may evaluate alerts now, and the time: one at a time does, until the end of its transaction.
-- A worker that is stopped meanwhile must not keep the others from it.
select pg_try_advisory_xact_lock($1) as is_mine, coalesce($2, now()) as at
from set_config('idle_in_transaction_session_timeout', '30s', true) as bounded;

-- name: list_alerts
-- What stands, or stood once, one row per kind and handler (primary key).
select kind, route, handler, raised_at, cleared_at, round, told_at, told_through, paused
from gateway.alerts
order by raised_at, kind, route, handler;

-- name: find_dead_alerts
-- Handlers with dead letters, and whether at least $2 of them were not reported yet
-- (deliveries_dead_of, from one handler to the next). $1: until when they count.
with recursive handlers as (
    (
        select route, handler from gateway.deliveries
        where status = 'dead'
        order by route, handler
        limit 1
    )
    union all
    select following.route, following.handler
    from handlers h
    cross join lateral (
        select route, handler from gateway.deliveries
        where status = 'dead' and (route, handler) > (h.route, h.handler)
        order by route, handler
        limit 1
    ) following
)
select h.route, h.handler, untold.n >= $2 as is_enough
from handlers h
left join gateway.alerts a on a.kind = 'dead' and a.route = h.route and a.handler = h.handler
cross join lateral (
    select count(*) as n
    from (
        select from gateway.deliveries d
        where d.status = 'dead' and d.route = h.route and d.handler = h.handler
          and d.finished_at > coalesce(  -- a mark that lies ahead is of a clock that was set back
              case when a.told_through <= $1 then a.told_through end, timestamptz '-infinity')
          and d.finished_at <= $1
        limit $2
    ) d
) untold;

-- name: find_effect_alerts
-- Handlers with effects of unknown outcome, and whether at least $2 of them were not reported yet (effects_unknown, the
-- newest $3). $1: until when they count.
select f.route, f.handler,
       count(*) filter (
           where f.unknown_at <= $1
             and f.unknown_at > coalesce(case when a.told_through <= $1 then a.told_through end, timestamptz '-infinity')
       ) >= $2 as is_enough
from (
    select d.route, d.handler, few.unknown_at
    from (
        select delivery_id, unknown_at from gateway.effects
        where status = 'unknown'
        order by unknown_at desc
        limit $3
    ) few
    cross join lateral (select route, handler from gateway.deliveries where id = few.delivery_id limit 1) d
) f
left join gateway.alerts a on a.kind = 'effects' and a.route = f.route and a.handler = f.handler
group by f.route, f.handler;

-- name: find_backlog_alerts
-- Handlers with a delivery that is due since before $1, and whether they are paused (deliveries_due,
-- from one handler to the next).
with recursive handlers as (
    (
        select route, handler from gateway.deliveries
        where status = 'pending'
        order by route, handler
        limit 1
    )
    union all
    select following.route, following.handler
    from handlers h
    cross join lateral (
        select route, handler from gateway.deliveries
        where status = 'pending' and (route, handler) > (h.route, h.handler)
        order by route, handler
        limit 1
    ) following
)
select h.route, h.handler, exists (
           select from gateway.pauses p where p.route = h.route and p.handler in (h.handler, '')
       ) as paused
from handlers h
cross join lateral (
    select due_at
    from gateway.deliveries
    where status = 'pending' and route = h.route and handler = h.handler
    order by due_at
    limit 1
) oldest
where oldest.due_at < $1;

-- name: describe_dead
-- The dead letters of these handlers: how many, up to $3, how many of them nobody was told of, since when,
-- and why the last one died (deliveries_dead_of).
select k.route, k.handler, d.n as count, d.untold, oldest.finished_at as since, latest.error
from unnest($1::text[], $2::text[]) as k (route, handler)
left join gateway.alerts a on a.kind = 'dead' and a.route = k.route and a.handler = k.handler
cross join lateral (
    select count(*) as n,
           count(*) filter (where l.finished_at > a.told_through is not false) as untold
    from (
        select finished_at
        from gateway.deliveries
        where status = 'dead' and route = k.route and handler = k.handler
        order by finished_at desc
        limit $3
    ) l
) d
cross join lateral (
    select finished_at
    from gateway.deliveries
    where status = 'dead' and route = k.route and handler = k.handler
    order by finished_at
    limit 1
) oldest
cross join lateral (
    select left(error, 1000) as error
    from gateway.deliveries
    where status = 'dead' and route = k.route and handler = k.handler
    order by finished_at desc, id desc
    limit 1
) latest;

-- name: describe_effects
-- The effects of unknown outcome of these handlers among the newest $3: how many, how many of them were not reported
-- yet, since when, and how the last call ended (effects_unknown).
select f.route, f.handler, count(*) as count,
       count(*) filter (where f.unknown_at > a.told_through is not false) as untold,
       min(f.unknown_at) as since, (array_agg(f.error order by f.unknown_at desc))[1] as error
from (
    select d.route, d.handler, few.unknown_at, few.error
    from (
        select delivery_id, unknown_at, error from gateway.effects
        where status = 'unknown'
        order by unknown_at desc
        limit $3
    ) few
    cross join lateral (select route, handler from gateway.deliveries where id = few.delivery_id limit 1) d
) f
join unnest($1::text[], $2::text[]) as k (route, handler) on k.route = f.route and k.handler = f.handler
left join gateway.alerts a on a.kind = 'effects' and a.route = f.route and a.handler = f.handler
group by f.route, f.handler;

-- name: describe_backlog
-- What is due of these handlers at $4: how many, up to $3, since when, who paused them, and whether a
-- worker has them (deliveries_due).
select k.route, k.handler, d.n as count, oldest.due_at as since, p.handler as pause_handler,
       p.actor as pause_actor, p.since as pause_since, p.reason as pause_reason, not exists (
           select from gateway.workers w where k.route || ' ' || k.handler = any (w.handlers)
       ) as orphaned
from unnest($1::text[], $2::text[]) as k (route, handler)
cross join lateral (
    select count(*) as n
    from (
        select from gateway.deliveries
        where status = 'pending' and route = k.route and handler = k.handler and due_at <= coalesce($4, now())
        limit $3
    ) l
) d
cross join lateral (
    select due_at
    from gateway.deliveries
    where status = 'pending' and route = k.route and handler = k.handler
    order by due_at
    limit 1
) oldest
left join lateral (
    select handler, actor, since, reason
    from gateway.pauses
    where route = k.route and handler in (k.handler, '')
    order by since
    limit 1
) p on true;

-- name: keep_alert
-- How an alert stands now (primary key).
insert into gateway.alerts
    (kind, route, handler, raised_at, cleared_at, round, told_at, told_through, paused)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
on conflict (kind, route, handler) do update
set raised_at = excluded.raised_at, cleared_at = excluded.cleared_at, round = excluded.round,
    told_at = excluded.told_at, told_through = excluded.told_through, paused = excluded.paused;

-- name: put_message
-- A message for each destination, in place of those before (primary key).
with gone as (
    delete from gateway.alert_messages
    where kind = $1 and route = $2 and handler = $3 and destination <> all ($4::text[])
)
insert into gateway.alert_messages (kind, route, handler, destination, id, message, next_at)
select $1, $2, $3, destination, $5, $6::json, $7
from unnest($4::text[]) as destination
on conflict (kind, route, handler, destination) do update
set id = excluded.id, message = excluded.message, next_at = excluded.next_at,
    status = 'waiting', attempts = 0, error = null;

-- name: take_messages
-- Messages to be sent now: whoever takes one has it for $4 (alert_messages_waiting). One that lies far ahead
-- is of a clock that was set back.
with due as (
    select kind, route, handler, destination
    from gateway.alert_messages
    where status = 'waiting' and destination = any ($1::text[])
      and (next_at <= coalesce($2, now()) or next_at > coalesce($2, now()) + interval '1 day')
    order by next_at
    limit $3
    for update skip locked
)
update gateway.alert_messages m
set attempts = m.attempts + 1, next_at = coalesce($2, now()) + $4::interval
from due
where (m.kind, m.route, m.handler, m.destination)
    = (due.kind, due.route, due.handler, due.destination)
returning m.kind, m.route, m.handler, m.destination, m.id, m.message, m.attempts;

-- name: note_sent
-- A destination took a message; a later one that is there by now still waits (primary key).
update gateway.alert_messages
set sent_at = coalesce($6, now()),
    status = case when id = $5 then 'sent' else status end,
    error = case when id = $5 then null else error end
where kind = $1 and route = $2 and handler = $3 and destination = $4;

-- name: note_unsent
-- A destination did not take a message: it is sent again after $7. Only that something is over is given up,
-- when it was tried often enough: what stands must be heard of (primary keys).
update gateway.alert_messages m
set error = $6,
    next_at = coalesce($8, now()) + $7::interval,
    status = case when m.attempts >= $9 and not exists (
        select from gateway.alerts a
        where a.kind = $1 and a.route = $2 and a.handler = $3 and a.cleared_at is null
    ) then 'failed' else 'waiting' end
where m.kind = $1 and m.route = $2 and m.handler = $3 and m.destination = $4 and m.id = $5
returning m.status;

-- name: forget_destinations
-- Messages to where nothing is sent any more (primary key).
delete from gateway.alert_messages where destination <> all ($1::text[]);

-- name: list_messages
-- The last message of each alert to each destination, and whether it got there (primary key).
select kind, route, handler, destination, status, attempts, error, sent_at
from gateway.alert_messages
order by kind, route, handler, destination;

-- name: note_test
-- Someone has a test message sent.
insert into gateway.audit (actor, action) values ($1, 'test-alerts');
