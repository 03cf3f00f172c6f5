-- name: keep_retention
-- How long routes keep what they have, for claims and settlements. Payloads that were filed when their route kept
-- them for a shorter time are looked at on their day, and so are those of a route that was not known before.
insert into gateway.retention as r (route, key, payload, longer_until)
select route, key, payload,
       case when payload > interval '14 days' then gateway.forget_on(now(), interval '14 days') end
from unnest($1::text[], $2::interval[], $3::interval[]) as i (route, key, payload)
order by route
on conflict (route) do update
set key = excluded.key, payload = excluded.payload,
    longer_until = case when excluded.payload > r.payload
                        then greatest(r.longer_until, gateway.forget_on(now(), r.payload))
                        else r.longer_until end
where (r.key, r.payload) is distinct from (excluded.key, excluded.payload);

-- name: make_partitions
-- Tables for the days that the payloads and attempts of the next eight days will be filed under.
select gateway.make_partitions();

-- name: list_due_partitions
-- Tables of days that have come, with what they take of the disk; and until which day there is something that was
-- filed where there was no table.
select parent, day, false as is_misfiled,
       coalesce(pg_total_relation_size(to_regclass(format('gateway.%I', name))), 0) as bytes
from gateway.partitions
where day <= (now() at time zone 'UTC')::date
union all
select 'payloads', max(until), true, 0
from gateway.payloads_default
where until <= (now() at time zone 'UTC')::date
having max(until) is not null
union all
select 'attempts', max(until), true, 0
from gateway.attempts_default
where until <= (now() at time zone 'UTC')::date
having max(until) is not null
order by day, parent;

-- name: find_holders
-- Who holds a table of these, or one of its days.
select distinct l.pid, l.virtualtransaction
from pg_locks l
where l.locktype = 'relation' and l.granted and l.pid <> pg_backend_pid()
  and l.database = (select oid from pg_database where datname = current_database())
  and l.relation = any (array (
      select to_regclass(format('gateway.%I', n.name))::oid from unnest($1::text[]) as n (name)));

-- name: find_wanted_payloads
-- Payloads whose day has come and that are wanted for longer, since a delivery of their event waits, runs or is
-- dead, or ended late: found by these deliveries, and not by a look at all payloads (deliveries_due,
-- deliveries_leased, deliveries_dead, deliveries_late). In one statement, so that none slips through while it
-- moves from one state to another.
with unfinished as (
    select route, event_id, null::timestamptz as ended_at
    from gateway.deliveries
    where status = 'pending' and (created_at < now() - interval '1 hour' or added)
    union all
    select route, event_id, null from gateway.deliveries where status = 'running'
    union all
    select route, event_id, null from gateway.deliveries where status = 'dead'
    union all
    select route, event_id, finished_at
    from gateway.deliveries
    where finished_at is not null and (added or finished_at - created_at > interval '1 hour')
      and finished_at > now() - coalesce((select max(payload) from gateway.retention), interval '14 days')
      and status in ('done', 'discarded')
), days as materialized (
    select day from gateway.partitions where parent = 'payloads' and is_attached
)
select e.route, e.event_id, coalesce((select min(day) from days where day >= w.until), w.until) as until
from (
    select u.route, u.event_id, max(coalesce(u.ended_at, now())) as ended_at
    from unfinished u
    group by u.route, u.event_id
) u
left join gateway.retention kept using (route)
cross join lateral (
    select gateway.forget_on(u.ended_at, coalesce(kept.payload, interval '14 days')) as until
) w
cross join lateral (
    select * from gateway.processed_events
    where route = u.route and event_id = u.event_id and payload_until <= (now() at time zone 'UTC')::date
    limit 1
) e
where w.until > (now() at time zone 'UTC')::date
  and (select true from gateway.payloads p where p.id = e.payload_id and p.until = e.payload_until)
order by e.route, e.event_id
limit $1;

-- name: find_longer_kept
-- Payloads whose day has come and that are wanted for longer, since their route keeps them for longer than when
-- they were filed. Reads the tables of these days, once for each time that somebody changed his mind.
with days as materialized (
    select day from gateway.partitions where parent = 'payloads' and is_attached
)
select p.route, p.event_id, coalesce((select min(day) from days where day >= w.until), w.until) as until
from gateway.payloads p
join gateway.retention kept on kept.route = p.route and kept.longer_until >= p.until
cross join lateral (
    select * from gateway.processed_events
    where route = p.route and event_id = p.event_id and payload_id = p.id and payload_until = p.until
    limit 1
) e
cross join lateral (select gateway.forget_on(e.received_at, kept.payload) as until) w
where p.until <= (now() at time zone 'UTC')::date and w.until > (now() at time zone 'UTC')::date
  and exists (select from gateway.retention  -- else nothing is read
              where longer_until >= (select min(day) from days))
limit $1;

-- name: find_misfiled
-- Payloads of days to come that nobody had made a table for, where there is one now: that of a later day is as good.
select p.route, p.event_id, d.day as until
from gateway.payloads_default p
cross join lateral (
    select min(day) as day from gateway.partitions where parent = 'payloads' and day >= p.until and is_attached
) d
where p.until > (now() at time zone 'UTC')::date and d.day is not null
limit $1;

-- name: refile_payloads
-- Files payloads under a later day: with their event held, against a replay, an erasure or a rekey.
with held as materialized (
    select e.payload_id, e.payload_until, i.route, i.event_id, i.until
    from unnest($1::text[], $2::text[], $3::date[]) as i (route, event_id, until)
    cross join lateral (
        select payload_id, payload_until from gateway.processed_events
        where route = i.route and event_id = i.event_id
        limit 1
        for update
    ) e
), moved as (
    update gateway.payloads p set until = h.until
    from held h
    where p.id = h.payload_id and p.until = h.payload_until and p.until < h.until
      and p.id = any (array (select payload_id from held))
      and p.until = any (array (select payload_until from held))
    returning p.route, p.event_id, p.until
)
update gateway.processed_events e set payload_until = m.until
from moved m
where e.route = m.route and e.event_id = m.event_id;

-- name: find_wanted_attempts
-- Deliveries that are kept for longer than an attempt of theirs is filed for: as in find_wanted_payloads.
with unfinished as (
    select id, route, null::timestamptz as ended_at
    from gateway.deliveries
    where status = 'pending' and (created_at < now() - interval '1 hour' or added)
    union all
    select id, route, null from gateway.deliveries where status = 'running'
    union all
    select id, route, null from gateway.deliveries where status = 'dead'
    union all
    select id, route, finished_at
    from gateway.deliveries
    where finished_at is not null and (added or finished_at - created_at > interval '1 hour')
      and finished_at > now() - coalesce((select max(key) from gateway.retention), interval '35 days')
      and status in ('done', 'discarded')
), days as materialized (
    select day from gateway.partitions where parent = 'attempts' and is_attached
)
select u.id, coalesce((select min(day) from days where day >= w.until), w.until) as until
from unfinished u
left join gateway.retention kept using (route)
cross join lateral (
    select gateway.forget_on(coalesce(u.ended_at, now()), coalesce(kept.key, interval '35 days')) as until
) w
where w.until > (now() at time zone 'UTC')::date
  and (select true from gateway.attempts a
       where a.delivery_id = u.id and a.until <= (now() at time zone 'UTC')::date limit 1)
order by u.id
limit $1;

-- name: find_misfiled_attempts
-- As find_misfiled.
select distinct a.delivery_id as id, d.day as until
from gateway.attempts_default a
cross join lateral (
    select min(day) as day from gateway.partitions where parent = 'attempts' and day >= a.until and is_attached
) d
where a.until > (now() at time zone 'UTC')::date and d.day is not null
limit $1;

-- name: refile_attempts
-- Files attempts of deliveries under a later day (attempts_pkey).
update gateway.attempts a set until = i.until
from unnest($1::bigint[], $2::date[]) as i (id, until)
where a.delivery_id = any ($1::bigint[]) and a.delivery_id = i.id and a.until < i.until;

-- name: detach_partition
-- Takes out the table of a day that has come. Raises LockNotAvailable where it is in use.
select gateway.detach_partition($1, $2);

-- name: drop_partition
-- Drops a table that was taken out.
select gateway.drop_partition($1, $2);

-- name: forget_misfiled_payloads
-- What was filed under days that nobody had made a table for, until one that had come when it was looked for what
-- is wanted. With its event held: a replay that found its payload there has it. What is held is left for another time.
with old as materialized (
    select id, until, route, event_id from gateway.payloads_default where until <= $2 limit $1
), held as (
    select o.id
    from old o
    cross join lateral (
        select payload_id, payload_until from gateway.processed_events
        where route = o.route and event_id = o.event_id
        limit 1
        for update skip locked
    ) e
    where e.payload_id = o.id and e.payload_until = o.until
    union all
    select o.id
    from old o
    where not exists (select from gateway.processed_events e
                      where e.route = o.route and e.event_id = o.event_id and e.payload_id = o.id)
)
delete from gateway.payloads
where id = any (array (select id from held)) and until <= $2;

-- name: forget_misfiled_attempts
-- The same of attempts.
delete from gateway.attempts
where delivery_id = any (array (select delivery_id from gateway.attempts_default where until <= $2 limit $1))
  and until <= $2;

-- name: describe_partitions
-- The oldest table that should have been gone this long, and whether something is filed in none.
select (select min(day) from gateway.partitions where day < now() - $1::interval) as oldest,
       exists (select from gateway.payloads_default) or exists (select from gateway.attempts_default) as is_misfiled;
