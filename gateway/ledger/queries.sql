-- name: claim
-- Events and their deliveries in one statement; a key that is taken comes back as no row, and so do
-- bytes that another event brought first (processed_events_guard), unless they are known to be flagged.
-- In key order, so that two processes with crossed batches wait for each other and never in a circle.
-- Deliveries are numbered in the order of arrival. One with an order key waits for its turn (advance).
with input as materialized (
    select c.*, b.body
    from json_to_recordset($1::json) as c (
        n bigint, route text, event_id text, provider text, type text, account text,
        livemode boolean, occurred_at timestamptz, received_at timestamptz, digest text,
        headers jsonb, replay text, replay_of text, handlers json,
        order_keys json, spooled boolean)
    join unnest($2::bytea[]) with ordinality as b (body, n) using (n)
), claimed as (
    insert into gateway.processed_events
        (route, event_id, provider, type, account, livemode, occurred_at, received_at, digest,
         headers, body, replay, guard, replay_of, spooled)
    select route, event_id, provider, type, account, livemode, occurred_at, received_at,
           decode(digest, 'hex'), headers, body, replay,
           case when replay is not null and replay_of is null then decode(digest, 'hex') end,
           replay_of, spooled
    from input
    order by route, event_id
    on conflict do nothing
    returning route, event_id
), fanned as (
    insert into gateway.deliveries (route, event_id, handler, order_key, due_at)
    select c.route, c.event_id, h.handler, i.order_keys ->> h.handler,
           case when i.order_keys ->> h.handler is not null then 'infinity'
                when i.spooled then least(i.received_at, now())  -- before what came later
                else now() end
    from claimed c
    join input i using (route, event_id)
    cross join json_array_elements_text(i.handlers) as h (handler)
    order by i.n, h.handler
    returning id, route, event_id, order_key is null as is_due
)
select route, event_id, coalesce(array_agg(id) filter (where id is not null), '{}') as delivery_ids,
       coalesce(array_agg(id) filter (where is_due), '{}') as due_ids
from (  -- one pass: as a join, the planner compares every event with every delivery
    select route, event_id, null::bigint as id, false as is_due from claimed
    union all
    select route, event_id, id, is_due from fanned
) as outcome
group by route, event_id;

-- name: find_claims
-- Why a key was not claimed: it is there already, or another event brought the same bytes first.
select mine.digest, first.event_id as first_event_id, first.replay as first_replay
from unnest($1::text[], $2::text[], $3::bytea[]) with ordinality as i (route, event_id, digest, n)
left join gateway.processed_events mine on mine.route = i.route and mine.event_id = i.event_id
left join gateway.processed_events first
       on first.route = i.route and first.guard = i.digest and first.event_id <> i.event_id
order by i.n;

-- name: lease_hinted
-- Deliveries named by the queue, as far as they are still due and ours to run (primary key).
with due as (
    select d.id
    from gateway.deliveries d
    join unnest($2::text[], $3::text[]) as mine (route, handler) using (route, handler)
    where d.id = any ($1::bigint[]) and d.due_at <= now()
      and d.status || '' = 'pending'  -- as it stands, the planner may walk all that waits instead
    order by d.id
    for update of d skip locked
), leased as (
    update gateway.deliveries d
    set status = 'running', runs = d.runs + 1, lease_token = gen_random_uuid(),
        leased_at = now(), leased_until = now() + $4::interval
    where d.id = any (array (select id from due))  -- as a join, a plan for many rows may scan all
    returning d.id, d.lease_token, d.route, d.event_id, d.handler, d.attempts
)
select l.id, l.lease_token, l.handler, l.attempts, e.event_id, e.type, e.route, e.provider, e.account,
       e.livemode, e.occurred_at, e.received_at, e.headers, e.body
from leased l
join gateway.processed_events e using (route, event_id)
order by l.id;

-- name: lease_due
-- What is due, oldest first, whoever was told of it or not (deliveries_due).
with due as (
    select d.id
    from unnest($1::text[], $2::text[]) as mine (route, handler)
    cross join lateral (
        select id, due_at
        from gateway.deliveries
        where route = mine.route and handler = mine.handler
          and status = 'pending' and due_at <= now()
        order by due_at, id
        limit $3
        for update skip locked
    ) d
    order by d.due_at, d.id
    limit $3
), leased as (
    update gateway.deliveries d
    set status = 'running', runs = d.runs + 1, lease_token = gen_random_uuid(),
        leased_at = now(), leased_until = now() + $4::interval
    where d.id = any (array (select id from due))  -- as a join, a plan for many rows may scan all
    returning d.id, d.lease_token, d.route, d.event_id, d.handler, d.attempts, d.due_at
)
select l.id, l.lease_token, l.handler, l.attempts, e.event_id, e.type, e.route, e.provider, e.account,
       e.livemode, e.occurred_at, e.received_at, e.headers, e.body
from leased l
join gateway.processed_events e using (route, event_id)
order by l.due_at, l.id;

-- name: find_due
-- Of which handlers deliveries that the queue named are due (primary key).
select distinct d.route, d.handler
from gateway.deliveries d
join unnest($2::text[], $3::text[]) as mine (route, handler) using (route, handler)
where d.id = any ($1::bigint[]) and d.due_at <= now()
  and d.status || '' = 'pending';  -- as in lease_hinted

-- name: lease_limited
-- What is due of a handler with a concurrency or a rate (deliveries_due, deliveries_slot).
select id, lease_token from gateway.lease_limited($1, $2, $3, $4, $5, $6);

-- name: read_leased
-- Deliveries that were just leased, with their events (primary keys).
select d.id, d.lease_token, d.handler, d.attempts, e.event_id, e.type, e.route, e.provider, e.account,
       e.livemode, e.occurred_at, e.received_at, e.headers, e.body
from gateway.deliveries d
cross join lateral (  -- as a plain join, it may be one with all events
    select * from gateway.processed_events where route = d.route and event_id = d.event_id limit 1
) e
where d.id = any ($1::bigint[]) and d.lease_token = any ($2::uuid[])
order by d.due_at, d.id;

-- name: next_place
-- How long until a handler with a rate may start another delivery.
select greatest(min(free_at), now()) - now()  -- a place that was never taken is free since ever
from gateway.places
where route = $1 and handler = $2;

-- name: keep_policies
-- What the functions of the ledger must know of handlers whose deliveries take turns, or did.
insert into gateway.handlers (route, handler, on_dead)
select * from unnest($1::text[], $2::text[], $3::text[])
on conflict (route, handler) do update set on_dead = excluded.on_dead
where handlers.on_dead <> excluded.on_dead;

-- name: keep_places
-- As many places for a handler with a rate as may start in its period.
with gone as (
    delete from gateway.places where route = $1 and handler = $2 and place > $3
)
insert into gateway.places (route, handler, place)
select $1, $2, n from generate_series(1, $3) as n
on conflict do nothing;

-- name: advance
-- Gives the turn to the first of each key that waits for it; returns what may run now. In the order of
-- their locks, so that two of these wait for each other and never in a circle.
select gateway.advance(k.route, k.handler, k.key) as id
from (
    select distinct gateway.turn_lock(route, handler, key), route, handler, key
    from unnest($1::text[], $2::text[], $3::text[]) as k (route, handler, key)
    order by 1
) k;

-- name: find_stuck
-- Walks on through the keys for which something waits (deliveries_held), whoever has a handler for it,
-- and tells those of which nothing has the turn: whoever should have given it was killed before it could.
with recursive held as (
    (select route, handler, order_key, 1 as n
     from gateway.deliveries
     where (route, handler, order_key) > ($1, $2, $3) and order_key is not null
       and status = 'pending' and due_at = 'infinity'
     order by route, handler, order_key
     limit 1)
    union all
    select next.route, next.handler, next.order_key, h.n + 1
    from held h
    cross join lateral (
        select route, handler, order_key
        from gateway.deliveries
        where (route, handler, order_key) > (h.route, h.handler, h.order_key)
          and order_key is not null and status = 'pending' and due_at = 'infinity'
        order by route, handler, order_key
        limit 1
    ) next
    where h.n < $4
)
select h.route, h.handler, h.order_key as key, not exists (
    select from gateway.deliveries d
    where d.route = h.route and d.handler = h.handler and d.order_key = h.order_key
      and d.status in ('pending', 'running') and d.due_at < 'infinity'
) and not exists (
    select from gateway.handlers p
    where p.route = h.route and p.handler = h.handler and p.on_dead = 'block' and exists (
        select from gateway.deliveries d
        where d.route = h.route and d.handler = h.handler and d.order_key = h.order_key
          and d.status = 'dead')
) as is_stuck
from held h
order by h.n;

-- name: reserve_once
-- Under the current lease: this delivery is to act for the key, unless another has done so, or is at it.
-- One that was lost, or is dead, holds nothing; one that has finished keeps its place through a replay.
with held as (
    select id from gateway.deliveries where id = $4 and lease_token = $5 for share
), reserved as (
    insert into gateway.once_keys as o (route, handler, key, delivery_id, token)
    select $1, $2, $3, id, $5 from held
    on conflict (route, handler, key) do update
    set delivery_id = excluded.delivery_id, token = excluded.token
    where o.delivery_id = excluded.delivery_id
       or o.finished_at is null and not exists (
           select from gateway.deliveries d where d.id = o.delivery_id and d.lease_token = o.token)
    returning true
)
select exists (select from held) as is_held, exists (select from reserved) as is_ours,
       o.finished_at is not null as is_done, d.event_id
from (values (1)) as one
left join gateway.once_keys o on o.route = $1 and o.handler = $2 and o.key = $3
left join gateway.deliveries d on d.id = o.delivery_id;

-- name: keep_once
-- In the handler's own transaction: it is done for this key, unless another run has taken it over.
update gateway.once_keys set finished_at = now()
where route = $1 and handler = $2 and key = $3 and delivery_id = $4 and token = $5
returning true;

-- name: begin_effect
-- Under the current lease, and only there. Begins it; where its end is unknown, again if asked to.
with held as (
    select id from gateway.deliveries where id = $1 and lease_token = $2 for share
), begun as (
    insert into gateway.effects as e (delivery_id, name, token)
    select id, $3, $2 from held
    on conflict (delivery_id, name) do update
    set token = excluded.token, calls = e.calls + 1, begun_at = now()
    where e.status = 'begun' and $4
    returning true
)
select exists (select from held) as is_held, exists (select from begun) as is_begun, e.status, e.result,
       e.begun_at
from (values (1)) as one
left join gateway.effects e on e.delivery_id = $1 and e.name = $3;

-- name: finish_effect
-- It happened, and this is what came of it. Again, where the answer to this got lost.
update gateway.effects
set status = 'done', result = $4, finished_at = now()
where delivery_id = $1 and name = $2 and token = $3
returning true;

-- name: release_effect
-- It certainly did not happen. Kept where an earlier call may have come through.
delete from gateway.effects
where delivery_id = $1 and name = $2 and token = $3 and status = 'begun' and calls = 1;

-- name: publish
-- A job in the handler's own transaction: an event with its deliveries, unless the key is taken.
with claimed as (
    insert into gateway.processed_events
        (route, event_id, provider, type, occurred_at, received_at, digest, headers, body)
    values ($1, $2, 'publish', $3, $4, $4, $5, '{}', $6)
    on conflict do nothing
    returning route, event_id
), fanned as (
    insert into gateway.deliveries (route, event_id, handler, order_key, due_at)
    select c.route, c.event_id, h.handler, h.order_key,
           case when h.order_key is null then now() else 'infinity' end
    from claimed c
    cross join unnest($7::text[], $8::text[]) as h (handler, order_key)
    order by h.handler
    returning id
)
select exists (select from claimed) as is_new, array (select id from fanned) as delivery_ids,
       (select digest <> $5 from gateway.processed_events where route = $1 and event_id = $2) as differs;

-- name: renew
-- Keeps leases alive and says which are still held. A row that is being settled right now is locked:
-- it is held, and is not waited for, since waiting would let the others expire.
with held as (
    select d.id, h.token
    from gateway.deliveries d
    join unnest($1::bigint[], $2::uuid[]) as h (id, token) on d.id = h.id and d.lease_token = h.token
), free as (
    select d.id
    from gateway.deliveries d
    join held h on d.id = h.id and d.lease_token = h.token
    for update of d skip locked
), renewed as (
    update gateway.deliveries set leased_until = now() + $3::interval
    where id in (select id from free)
)
select token from held;

-- name: settle
-- The end of a run, fenced by the lease's token. Raises GW001 where the lease was lost.
select gateway.settle($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: reap
-- Takes back leases that ran out: their worker is gone, or too slow to say that it lives.
-- Not while the server has only just come back: until then no worker could say anything.
with expired as (
    select id
    from gateway.deliveries
    where status = 'running' and leased_until < now()
      and not pg_postmaster_start_time() between now() - $3::interval and now()
    order by leased_until
    limit $1
    for update skip locked
), reaped as (
    update gateway.deliveries d
    set status = case when d.losses + 1 >= $2 then 'dead' else 'pending' end,
        losses = d.losses + 1,
        due_at = now(),
        error = 'WORKER_LOST: the lease ran out while the handler was running',
        finished_at = case when d.losses + 1 >= $2 then now() end,
        lease_token = null, leased_until = null, slot = null
    from expired
    where d.id = expired.id and d.status = 'running'
    returning d.id, d.runs, d.leased_at, d.route, d.event_id, d.handler, d.status, d.error, d.order_key
), noted as (
    insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome, error)
    select id, runs, leased_at, now(), 'lost', error from reaped
)
select id, route, event_id, handler, status, order_key from reaped;

-- name: replay
-- A fresh round of attempts, now, with its audit row. Refused while running, and once the body is gone.
-- One with an order key runs now if it has the turn, else when it gets it (advance).
with kept as (
    select d.id
    from gateway.deliveries d
    join gateway.processed_events e using (route, event_id)
    where d.id = $1 and e.body is not null
    for key share of e
), replayed as (
    update gateway.deliveries d
    set status = 'pending', attempts = 0, losses = 0, error = null, finished_at = null,
        due_at = case when d.order_key is null or d.status = 'pending' and d.due_at < 'infinity'
                      then now() else 'infinity' end
    from kept
    where d.id = kept.id and d.status in ('pending', 'done', 'dead', 'discarded')
    returning d.id, d.route, d.event_id, d.handler, d.order_key
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, reason)
    select $2, 'replay', id, route, event_id, $3 from replayed
)
select id, route, handler, order_key from replayed;

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
)
select id, route, handler, order_key from discarded;

-- name: alive
-- A worker says that it lives and which handlers it has, and forgets those that have not for a while.
-- Returns by how much the server's clock was set back since one of them said so last.
with gone as (
    delete from gateway.workers where seen_at < now() - $5::interval
), latest as (
    select max(seen_at) as seen_at from gateway.workers
)
insert into gateway.workers (id, host, pid, handlers)
values ($1, $2, $3, $4::text[])
on conflict (id) do update set seen_at = now(), handlers = excluded.handlers
returning greatest((select seen_at from latest) - now(), interval '0') as set_back;

-- name: set_back
-- The server's clock was set back: what became due, got its turn, or was leased by the time before would
-- wait until it comes again.
with noticed as (
    update gateway.workers set seen_at = now() where seen_at > now()
), leased as (
    update gateway.deliveries set leased_until = now() + $2::interval
    where id = any (array (
        select id from gateway.deliveries
        where status = 'running' and leased_until > now() + $2::interval
        for update skip locked
    ))
), due as (
    update gateway.deliveries set due_at = greatest(due_at - $1::interval, now())
    where id = any (array (
        select d.id from gateway.deliveries d
        where d.status = 'pending' and d.due_at > now() and d.due_at < 'infinity'
          and (d.created_at > now() or d.order_key is not null and d.runs = 0 or exists (
              select from gateway.attempts a
              where a.delivery_id = d.id and a.number = d.runs and a.finished_at > now()
          ) or exists (
              select from gateway.audit o
              where o.delivery_id = d.id and o.action = 'replay' and o.at > now()))
        for update skip locked
    ))
    returning id
)
select count(*) from due;

-- name: leave
-- A worker ends.
delete from gateway.workers where id = $1;

-- name: expire_dead
-- Dead letters past their retention are given up, with an audit row for each (deliveries_dead).
with old as (
    select id
    from gateway.deliveries
    where status = 'dead' and route = $1 and finished_at < now() - $2::interval
    order by finished_at, id
    limit $3
    for update skip locked
), discarded as (
    update gateway.deliveries d
    set status = 'discarded', finished_at = now()
    where d.id = any (array (select id from old)) and d.status = 'dead'
    returning d.id, d.route, d.event_id
), noted as (
    insert into gateway.audit (actor, action, delivery_id, route, event_id, reason)
    select 'retention', 'discard', id, route, event_id, 'dead for longer than retention.dead'
    from discarded
)
select count(*) from discarded;

-- name: start_prune
-- Whether this worker may prune now: one at a time does, until the end of its transaction.
-- A prune that a crash undoes is simply done again, so its commit need not wait for the disk; and a
-- plan made while the tables were small must not scan them once they have grown.
select pg_try_advisory_xact_lock($1)
from set_config('synchronous_commit', 'off', true) as commits,
     set_config('enable_seqscan', 'off', true) as plans;

-- name: hold_events
-- Walks on from a mark to a given age, oldest first (processed_events_received), and holds those old
-- enough to lose something: against a replay, which takes a share of its event first.
with walked as materialized (
    select ctid, received_at, route, event_id, body is not null as has_body
    from gateway.processed_events
    where received_at < now() - $1::interval and (received_at, route, event_id) > ($2, $3, $4)
    order by received_at, route, event_id
    limit $5
), held as (
    select e.ctid
    from gateway.processed_events e
    where e.ctid = any (array (
        select w.ctid
        from walked w
        join unnest($6::text[], $7::interval[], $8::interval[]) as kept (route, key, payload)
          using (route)
        where w.received_at < now() - case when w.has_body then least(kept.key, kept.payload)
                                           else kept.key end
    ))
    for update skip locked
)
select received_at, route, event_id, (select count(*) from walked) as walked,
       (select array_agg(ctid)::text from held) as held
from walked
order by received_at desc, route desc, event_id desc
limit 1;

-- name: prune_events
-- Of events that are held: forgets them with their deliveries and attempts, or empties their bodies
-- and headers and leaves the key, so that a late retry is still a duplicate, or leaves them alone.
-- A statement of its own: it must see what was committed before they were held. From then on they and
-- their ended deliveries stay where they are, so that their places (ctid) can be relied on.
with held as materialized (
    select e.ctid as place, e.route, e.body is not null as has_body,
           coalesce(d.ended_at, e.received_at) as ended_at, d.unfinished, d.places
    from gateway.processed_events e
    cross join lateral (
        select bool_or(status in ('pending', 'running', 'dead')) as unfinished,
               max(finished_at) as ended_at, array_agg(ctid) as places
        from gateway.deliveries
        where route = e.route and event_id = e.event_id
    ) d
    where e.ctid = any ($1::text::tid[])
), sorted as materialized (
    select place, places, ended_at < now() - key as is_over,
           has_body and ended_at < now() - payload as is_emptied
    from held
    join unnest($2::text[], $3::interval[], $4::interval[]) as kept (route, key, payload)
      using (route)
    where unfinished is not true
), ended as (
    delete from gateway.deliveries
    where ctid = any (array (select unnest(places) from sorted where is_over))
      and status in ('done', 'discarded')
    returning id
), forgotten as (
    delete from gateway.attempts where delivery_id = any (array (select id from ended))
), undone as (
    delete from gateway.effects where delivery_id = any (array (select id from ended))
), freed as (
    delete from gateway.once_keys where delivery_id = any (array (select id from ended))
), removed as (
    delete from gateway.processed_events
    where ctid = any (array (select place from sorted where is_over))
    returning route
), emptied as (
    update gateway.processed_events
    set body = null, headers = null
    where ctid = any (array (select place from sorted where is_emptied and not is_over))
    returning route
)
select (select count(*) from removed) as keys, (select count(*) from emptied) as payloads;

-- name: list_events
-- Events, newest first, with the state of their deliveries (processed_events_received).
-- Filters are put so that the planner cannot guess how rare a match is: it would scan the whole table
-- for a rare one, where a walk from the newest finds what is new at once and can be bounded.
select e.received_at, e.route, e.event_id, e.type, e.account, e.livemode, e.occurred_at, e.provider,
       e.replay_of, e.spooled, e.body is not null as payload_kept,
       coalesce((
           select jsonb_object_agg(status, n)
           from (select status, count(*) as n from gateway.deliveries d
                 where d.route = e.route and d.event_id = e.event_id group by status) s
       ), '{}') as deliveries
from gateway.processed_events e
where coalesce(e.route = $1, true)
  and coalesce(e.type like $2, true)
  and ($3::text is null or (
        select true from gateway.deliveries d
        where d.route = e.route and d.event_id = e.event_id and d.handler = $3))
  and e.received_at >= coalesce($4, timestamptz '-infinity')
  and e.received_at < coalesce($5, timestamptz 'infinity')
order by e.received_at desc, e.route desc, e.event_id desc
limit $6;

-- name: list_dead
-- Dead letters, newest first (deliveries_dead), with filters as in list_events.
select d.id as delivery_id, d.route, d.event_id, e.type, d.handler, d.status, d.attempts, d.error,
       d.created_at, d.finished_at
from gateway.deliveries d
cross join lateral (  -- as a plain join, it may be one with all events
    select type from gateway.processed_events where route = d.route and event_id = d.event_id limit 1
) e
where d.status = 'dead'
  and coalesce(d.route = $1, true)
  and coalesce(e.type like $2, true)
  and coalesce(d.handler = $3, true)
  and d.finished_at >= coalesce($4, timestamptz '-infinity')
  and d.finished_at < coalesce($5, timestamptz 'infinity')
order by d.finished_at desc, d.id desc
limit $6;

-- name: find_events
-- Events with this id, on any route or on one (primary key, one probe per route that has events).
with recursive routes as (
    (select route from gateway.processed_events order by route limit 1)
    union all
    select next.route
    from routes r
    cross join lateral (
        select route from gateway.processed_events where route > r.route order by route limit 1
    ) next
)
select e.route, e.event_id, e.provider, e.type, e.account, e.livemode, e.occurred_at, e.received_at,
       encode(e.digest, 'hex') as digest, e.headers, e.body, e.replay_of, e.spooled
from routes r
cross join lateral (
    select * from gateway.processed_events where route = r.route and event_id = $2 limit 1
) e
where $1::text[] is null or e.route = any ($1)
order by e.route;

-- name: find_delivery
-- One delivery and where it stands (primary key).
select d.id as delivery_id, d.route, d.event_id, d.handler, d.status, d.attempts, d.error,
       d.created_at, nullif(d.due_at, 'infinity') as due_at, d.leased_at, d.finished_at, d.order_key,
       exists (select from gateway.processed_events e
               where e.route = d.route and e.event_id = d.event_id and e.body is not null)
           as payload_kept
from gateway.deliveries d
where d.id = $1;

-- name: list_deliveries
-- The deliveries of one event.
select d.id as delivery_id, d.route, d.event_id, d.handler, d.status, d.attempts, d.error,
       d.created_at, nullif(d.due_at, 'infinity') as due_at, d.leased_at, d.finished_at, d.order_key,
       holder.id as held_by, holder.status as held_by_status
from gateway.deliveries d
left join lateral (  -- what has the turn, or blocks it
    select h.id, h.status
    from gateway.deliveries h
    where d.due_at = 'infinity' and d.status = 'pending'
      and h.route = d.route and h.handler = d.handler and h.order_key = d.order_key
      and (h.status in ('pending', 'running') and h.due_at < 'infinity' or h.status = 'dead')
    order by h.status = 'dead', h.id
    limit 1
) holder on true
where d.route = $1 and d.event_id = $2
order by d.id;

-- name: list_attempts
-- The attempts of some deliveries, in order.
select delivery_id, number, started_at, finished_at, outcome, error
from gateway.attempts
where delivery_id = any ($1::bigint[])
order by delivery_id, number;

-- name: list_effects
-- The outside effects of some deliveries.
select delivery_id, name, status, calls, result, begun_at, finished_at
from gateway.effects
where delivery_id = any ($1::bigint[])
order by delivery_id, begun_at, name;

-- name: list_audit
-- What was done to some deliveries by people and by retention.
select delivery_id, at, actor, action, reason
from gateway.audit
where delivery_id = any ($1::bigint[])
order by id;

-- name: count_unfinished
-- Waiting, running and dead deliveries per handler, from their partial indexes.
select route, handler, status, count(*) as n, min(due_at) filter (where due_at <= now()) as oldest_at,
       count(*) filter (where due_at = 'infinity') as waiting_turn
from gateway.deliveries
where status = 'pending'
group by route, handler, status
union all
select route, handler, status, count(*), min(leased_at), 0
from gateway.deliveries
where status = 'running'
group by route, handler, status
union all
select route, handler, status, count(*), min(finished_at), 0
from gateway.deliveries
where status = 'dead'
group by route, handler, status
order by route, handler, status;

-- name: count_blocked
-- Keys that a dead delivery blocks, with what waits behind it, per handler (deliveries_blocking,
-- deliveries_held).
select d.route, d.handler, count(*) as keys, sum(waiting.n)::bigint as waiting
from gateway.handlers h
cross join lateral (
    select distinct route, handler, order_key
    from gateway.deliveries
    where route = h.route and handler = h.handler and order_key is not null and status = 'dead'
) d
cross join lateral (
    select count(*) as n
    from gateway.deliveries w
    where w.route = d.route and w.handler = d.handler and w.order_key = d.order_key
      and w.status = 'pending' and w.due_at = 'infinity'
) waiting
where h.on_dead = 'block'
group by d.route, d.handler
order by d.route, d.handler;

-- name: list_exhausted
-- Handlers with a rate that may start nothing now, and when the next one may (primary key).
select route, handler, min(free_at) as free_at
from gateway.places
group by route, handler
having min(free_at) > now()
order by route, handler;

-- name: count_received
-- Events per route in the last while, and the newest (processed_events_received).
select route, count(*) as n, max(received_at) as last_at
from gateway.processed_events
where received_at >= now() - $1::interval
group by route
order by route;

-- name: list_workers
-- Workers that were seen lately.
select id, host, pid, handlers, started_at, seen_at
from gateway.workers
where seen_at >= now() - $1::interval
order by started_at;
