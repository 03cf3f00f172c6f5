-- name: lease_hinted
-- Deliveries named by the queue, as far as they are still due and ours to run (primary key).
with mine as materialized (  -- what is paused is not even locked
    select * from unnest($2::text[], $3::text[]) as m (route, handler)
    where not exists (
        select from gateway.pauses p where p.route = m.route and p.handler in (m.handler, ''))
), due as (
    select d.id, d.route, d.event_id
    from gateway.deliveries d
    join mine using (route, handler)
    where d.id = any ($1::bigint[]) and d.due_at <= now() and d.workers_lost < 2
      and d.status || '' = 'pending'  -- as it stands, the planner may walk all that waits instead
    order by d.id
    for update of d skip locked
), sized as materialized (  -- octet_length of a bytea reads its header only: no body is fetched here
    select due.id, e.event_id, e.type, e.route, e.provider, e.account, e.livemode, e.occurred_at,
           e.received_at, e.trace, p.headers, p.body, p.key_id, coalesce(octet_length(p.body), 0) as bytes
    from due
    cross join lateral (  -- as a plain join, it may be one with all events
        select * from gateway.processed_events where route = due.route and event_id = due.event_id limit 1
    ) e
    left join lateral (  -- of one day's table
        select headers, body, key_id from gateway.payloads
        where id = e.payload_id and until = e.payload_until
        limit 1
    ) p on true
), fitting as (  -- bodies larger than $6, while those before them are fewer bytes than $5
    select id
    from (
        select id, bytes, sum(bytes) filter (where bytes > $6::integer)
            over (order by id rows between unbounded preceding and 1 preceding) as before
        from sized
    ) s
    where bytes <= $6::integer or coalesce(before, 0) < $5::bigint
), leased as (
    update gateway.deliveries d
    set status = 'running', runs = d.runs + 1, lease_token = gen_random_uuid(),
        leased_at = now(), leased_until = now() + $4::interval
    where d.id = any (array (select id from fitting))  -- as a join, a plan for many rows may scan all
    returning d.id, d.lease_token, d.handler, d.attempts, d.runs, d.conflicts, d.order_key
)
select l.id, l.lease_token, l.handler, l.attempts, l.runs, l.conflicts, l.order_key, s.event_id, s.type, s.route,
       s.provider, s.account, s.livemode, s.occurred_at, s.received_at, s.headers, s.body, s.key_id, s.trace
from leased l
join sized s using (id)
order by l.id;

-- name: lease_due
-- Due deliveries, oldest first: suspects only, or none of them (deliveries_due, deliveries_suspect). If there is no room
-- for a large body, the oldest small ones among the first 1,000 of each handler.
with mine as materialized (  -- what is paused is not even locked
    select * from unnest($1::text[], $2::text[]) as m (route, handler)
    where not exists (
        select from gateway.pauses p where p.route = m.route and p.handler in (m.handler, ''))
), small_ids as materialized (  -- not locked: large ones are other workers' to lease
    select d.id
    from mine
    cross join lateral (
        select id, event_id
        from gateway.deliveries
        where route = mine.route and handler = mine.handler
          and status = 'pending' and workers_lost < 2 and due_at <= now()
        order by due_at, id
        limit 1000
    ) d
    cross join lateral (
        select payload_id, payload_until from gateway.processed_events
        where route = mine.route and event_id = d.event_id
        limit 1
    ) e
    left join lateral (
        select octet_length(body) as bytes from gateway.payloads
        where id = e.payload_id and until = e.payload_until
        limit 1
    ) p on true
    where $5::bigint <= 0 and not $7::boolean and coalesce(p.bytes, 0) <= $6::integer
), due as (
    select * from (
        select id, due_at, route, event_id
        from gateway.deliveries
        where $5::bigint <= 0 and not $7::boolean and id = any (array (select id from small_ids))
          and status || '' = 'pending' and workers_lost < 2 and due_at <= now()  -- as in lease_hinted
        order by due_at, id
        limit $3
        for update skip locked
    ) small
    union all
    select * from (
        select d.id, d.due_at, mine.route, d.event_id
        from mine
        cross join lateral (  -- one of the two branches, by a one-time filter: each has its own index
            select * from (
                select id, due_at, event_id
                from gateway.deliveries
                where $5::bigint > 0 and not $7::boolean and route = mine.route and handler = mine.handler
                  and status = 'pending' and workers_lost < 2 and due_at <= now()
                order by due_at, id
                limit $3
                for update skip locked
            ) fresh
            union all
            select * from (
                select id, due_at, event_id
                from gateway.deliveries
                where $7::boolean and route = mine.route and handler = mine.handler
                  and status = 'pending' and workers_lost >= 2 and due_at <= now()
                order by due_at, id
                limit $3
                for update skip locked
            ) suspect
        ) d
        order by d.due_at, d.id
        limit $3
    ) oldest
), sized as materialized (  -- octet_length of a bytea reads its header only: no body is fetched here
    select due.id, due.due_at, e.event_id, e.type, e.route, e.provider, e.account, e.livemode, e.occurred_at,
           e.received_at, e.trace, p.headers, p.body, p.key_id, coalesce(octet_length(p.body), 0) as bytes
    from due
    cross join lateral (  -- as a plain join, it may be one with all events
        select * from gateway.processed_events where route = due.route and event_id = due.event_id limit 1
    ) e
    left join lateral (  -- of one day's table
        select headers, body, key_id from gateway.payloads
        where id = e.payload_id and until = e.payload_until
        limit 1
    ) p on true
), fitting as (  -- bodies larger than $6, while those before them are fewer bytes than $5
    select id
    from (
        select id, bytes, sum(bytes) filter (where bytes > $6::integer)
            over (order by due_at, id rows between unbounded preceding and 1 preceding) as before
        from sized
    ) s
    where bytes <= $6::integer or coalesce(before, 0) < $5::bigint
), leased as (
    update gateway.deliveries d
    set status = 'running', runs = d.runs + 1, lease_token = gen_random_uuid(),
        leased_at = now(), leased_until = now() + $4::interval
    where d.id = any (array (select id from fitting))  -- as a join, a plan for many rows may scan all
    returning d.id, d.lease_token, d.handler, d.attempts, d.runs, d.conflicts, d.order_key
)
select l.id, l.lease_token, l.handler, l.attempts, l.runs, l.conflicts, l.order_key, s.event_id, s.type, s.route,
       s.provider, s.account, s.livemode, s.occurred_at, s.received_at, s.headers, s.body, s.key_id, s.trace
from leased l
join sized s using (id)
order by s.due_at, l.id;

-- name: find_suspects
-- Whether a suspect of these handlers is due (deliveries_suspect).
select exists (
    select
    from unnest($1::text[], $2::text[]) as m (route, handler)
    cross join lateral (
        select from gateway.deliveries
        where route = m.route and handler = m.handler
          and status = 'pending' and workers_lost >= 2 and due_at <= now()
        limit 1
    ) d
    where not exists (
        select from gateway.pauses p where p.route = m.route and p.handler in (m.handler, ''))
);

-- name: find_due
-- Of which handlers deliveries that the queue named are due (primary key).
select distinct d.route, d.handler
from gateway.deliveries d
join unnest($2::text[], $3::text[]) as mine (route, handler) using (route, handler)
where d.id = any ($1::bigint[]) and d.due_at <= now()
  and d.status || '' = 'pending';  -- as in lease_hinted

-- name: lease_limited
-- What is due of a handler with a concurrency or a rate (deliveries_due, deliveries_slot).
select leased.id, leased.lease_token
from (
    select where not exists (
        select from gateway.pauses p where p.route = $1 and p.handler in ($2, ''))
) as free
cross join lateral gateway.lease_limited($1, $2, $3, $4, $5, $6, $7, $8, $9) as leased;

-- name: read_leased
-- Deliveries that were just leased, with their events (primary keys).
select d.id, d.lease_token, d.handler, d.attempts, d.runs, d.conflicts, d.order_key, e.event_id, e.type, e.route,
       e.provider, e.account, e.livemode, e.occurred_at, e.received_at, p.headers, p.body, p.key_id, e.trace
from gateway.deliveries d
cross join lateral (  -- as a plain join, it may be one with all events
    select * from gateway.processed_events where route = d.route and event_id = d.event_id limit 1
) e
left join lateral (  -- of one day's table
    select headers, body, key_id from gateway.payloads
    where id = e.payload_id and until = e.payload_until
    limit 1
) p on true
where d.id = any ($1::bigint[]) and d.lease_token = any ($2::uuid[])
order by d.due_at, d.id;

-- name: next_place
-- How long until a handler with a rate may start another delivery.
select greatest(min(free_at), now()) - now()  -- a place that was never taken is free since ever
from gateway.places
where route = $1 and handler = $2;

-- name: keep_places
-- As many places for a handler with a rate as may start in its period.
with gone as (
    delete from gateway.places where route = $1 and handler = $2 and place > $3
)
insert into gateway.places (route, handler, place)
select $1, $2, n from generate_series(1, $3) as n
on conflict do nothing;

-- name: renew
-- A worker's heartbeat: keeps these leases alive, and returns the tokens of those that were not lost before. It
-- updates the worker's row and no delivery, since a handler may be settling one at REPEATABLE READ (primary keys).
with beat as (
    update gateway.workers set held = $2::uuid[], held_until = now() + $4::interval where id = $3::uuid
)
select h.token
from gateway.deliveries d
join unnest($1::bigint[], $2::uuid[]) as h (id, token) on d.id = h.id and d.lease_token = h.token;

-- name: settle
-- The end of a run, fenced by the lease's token. Raises GW001 where the lease was lost.
select gateway.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: forget_in_vain
-- Of a delivery that runs, the old runs that burned no attempt (attempts_pkey).
delete from gateway.attempts
where delivery_id = $1 and outcome in ('deferred', 'released')
  and number <= (select runs - $2::integer from gateway.deliveries where id = $1);

-- name: reap
-- Takes back expired leases: their worker is gone, or its heartbeats are late.
-- Not while the server has only just come back: until then no worker could send a heartbeat.
with expired as (
    select id
    from gateway.deliveries
    where status = 'running' and leased_until < now()
      and lease_token not in (select unnest(held) from gateway.workers where held_until >= now())
      and not pg_postmaster_start_time() between now() - $3::interval and now()
    order by leased_until
    limit $1
    for update skip locked
), reaped as (
    update gateway.deliveries d
    set status = case when d.workers_lost >= 2 and d.losses + 1 >= $2 then 'dead' else 'pending' end,
        losses = case when d.workers_lost >= 2 then d.losses + 1 else d.losses end,  -- a suspect runs alone
        workers_lost = d.workers_lost + 1,
        due_at = now(),
        error = 'WORKER_LOST: the lease ran out while the handler was running'
                || case when d.workers_lost >= 2
                        then ' alone in a process: it ends or blocks the process (out of memory, a crash, os._exit); '
                             || d.losses + 1 || ' such losses in a row'
                        else '' end,
        finished_at = case when d.workers_lost >= 2 and d.losses + 1 >= $2 then now() end,
        lease_token = null, leased_until = null, slot = null
    from expired
    where d.id = expired.id and d.status = 'running'
    returning d.id, d.runs, d.leased_at, d.route, d.event_id, d.handler, d.status, d.error, d.order_key
), noted as (
    insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome, error, until)
    select id, runs, leased_at, now(), 'lost', error,
           gateway.forget_on(now(), coalesce(kept.key, interval '35 days'))
    from reaped
    left join gateway.retention kept using (route)
)
select id, route, event_id, handler, status, order_key from reaped;

-- name: find_delivery
-- One delivery and where it stands (primary key).
select d.id as delivery_id, d.route, d.event_id, d.handler, d.status, d.attempts, d.error,
       d.created_at, nullif(d.due_at, 'infinity') as due_at, d.leased_at, d.finished_at, d.order_key,
       p.id is not null as payload_kept
from gateway.deliveries d
left join lateral (
    select payload_id, payload_until from gateway.processed_events
    where route = d.route and event_id = d.event_id
    limit 1
) e on true
left join lateral (
    select id from gateway.payloads where id = e.payload_id and until = e.payload_until limit 1
) p on true
where d.id = $1;

-- name: replay
-- A fresh round of attempts, now, with its audit row. Refused while running, and once the body is gone.
-- One with an order key runs now if it has the turn, else when it gets it (advance). With $4 its effects of unknown
-- outcome are requested, too (retry_effects). Those that were done are never made again.
with kept as materialized (
    select id from gateway.deliveries where id = $1 and gateway.hold_payload(route, event_id)
), replayed as (
    update gateway.deliveries d
    set status = 'pending', attempts = 0, losses = 0, conflicts = 0, error = null, finished_at = null,
        not_before = null, cause = null,
        due_at = case when d.order_key is null or d.status = 'pending' and d.due_at < 'infinity'
                      then now() else 'infinity' end
    from kept
    where d.id = kept.id and d.status in ('pending', 'done', 'dead', 'discarded')
    returning d.id, d.route, d.event_id, d.handler, d.order_key
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, reason)
    select $2, 'replay', id, route, event_id, $3 from replayed
), requested as (
    update gateway.effects e set status = 'begun', unknown_at = coalesce(e.unknown_at, now())
    from replayed r
    where $4 and e.delivery_id = r.id and e.made_by is null
      and (e.status = 'unknown' or e.status = 'begun' and e.unknown_at is null)
    returning e.delivery_id, e.name
), noted_effects as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, effect, reason)
    select $2, 'retry effect', r.id, r.route, r.event_id, o.name, $3
    from requested o
    join replayed r on r.id = o.delivery_id
)
select r.id, r.route, r.handler, r.order_key, f.kept as effects_kept, f.unknown as effects_unknown
from replayed r
cross join lateral (
    select count(*) filter (where status = 'done') as kept, count(*) filter (
        where made_by is null and (status = 'unknown' or status = 'begun' and unknown_at is null)) as unknown
    from gateway.effects  -- as they were before this statement
    where delivery_id = r.id
) f;

-- name: count_effects_of
-- Effects of a delivery that were done, and whose outcome is unknown, without those of which a retry is requested (effects_pkey).
select count(*) filter (where status = 'done') as kept,
       count(*) filter (
           where made_by is null and (status = 'unknown' or status = 'begun' and unknown_at is null)) as unknown
from gateway.effects
where delivery_id = $1;

-- name: discard
-- Gives up what waits or is dead, with its audit row. Refused in every other state (primary key).
with discarded as (
    update gateway.deliveries
    set status = 'discarded', finished_at = now()
    where id = $1 and status in ('pending', 'dead')
    returning id, route, event_id, handler, order_key
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, reason)
    select $2, 'discard', id, route, event_id, $3 from discarded
), listed as (  -- calls that may have been done, and retries that were requested: no run makes them now
    update gateway.effects e set status = 'unknown', unknown_at = now()
    from discarded d
    where e.delivery_id = d.id and e.status = 'begun' and e.made_by is null
)
select id, route, handler, order_key from discarded;
