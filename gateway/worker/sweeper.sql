-- name: alive
-- Registers a worker with its handlers, or refreshes it, and removes workers that were not seen for a while and
-- hold no lease. Returns by how much the server's clock was set back since a worker was last seen.
with gone as (
    delete from gateway.workers
    where seen_at < now() - $5::interval and (held_until is null or held_until < now())
), latest as (
    select max(seen_at) as seen_at from gateway.workers
)
insert into gateway.workers (id, host, pid, handlers, version, isolated)
values ($1, $2, $3, $4::text[], $6, $7)
on conflict (id) do update set seen_at = now(), handlers = excluded.handlers
returning greatest((select seen_at from latest) - now(), interval '0') as set_back;

-- name: set_back
-- The server's clock was set back: what became due, got its turn, or was leased by the time before would
-- wait until it comes again. Dead letters and effects of unknown outcome would be later than any bulk operation
-- of them, and be left out.
with noticed as (
    update gateway.workers
    set seen_at = least(seen_at, now()),
        held_until = least(held_until, now() + $2::interval)
    where seen_at > now() or held_until > now() + $2::interval
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
), dead as (
    update gateway.deliveries set finished_at = now()
    where id = any (array (
        select id from gateway.deliveries where status = 'dead' and finished_at > now() for update skip locked
    ))
), unknown as (
    update gateway.effects set unknown_at = now() where status = 'unknown' and unknown_at > now()
)
select count(*) from due;

-- name: leave
-- A worker ends.
delete from gateway.workers where id = $1;
