-- name: find_unseen
-- Which of these ids the ledger has neither claimed nor refused as REPLAYED (primary keys). A refusal counts only if
-- the type of the event that brought the bytes first is still one whose repeats are refused ($3).
select i.event_id
from unnest($2::text[]) as i (event_id)
where not exists (
    select from gateway.processed_events e where e.route = $1 and e.event_id = i.event_id
) and not exists (
    select from gateway.refusals f
    left join gateway.processed_events first on first.route = f.route and first.guard = f.digest
    where f.route = $1 and f.event_id = i.event_id and coalesce(first.type = any ($3::text[]), true)
);

-- name: note_gaps
-- Notes what is missing for a run, beside what is known of it (primary key). What was given up stays
-- so, unless a person asks again. Of several deliveries the first tells the age, the last the handle.
insert into gateway.gaps as g
    (route, event_id, run_id, type, handle, handled_at, occurred_at, is_first, recorded)
select $1, f.event_id, $2, f.type, f.handle, f.handled_at, f.occurred_at, f.is_first, f.recorded
from json_to_recordset($3::json) as f (
    event_id text, type text, handle text, handled_at timestamptz, occurred_at timestamptz,
    is_first boolean, recorded text)
order by f.event_id
on conflict (route, event_id) do update
set run_id = excluded.run_id,
    handle = case when excluded.handled_at >= g.handled_at then excluded.handle else g.handle end,
    recorded = case when excluded.handled_at >= g.handled_at then excluded.recorded else g.recorded end,
    handled_at = greatest(g.handled_at, excluded.handled_at),
    occurred_at = least(g.occurred_at, excluded.occurred_at),
    is_first = g.is_first or excluded.is_first,
    status = case when g.status = 'recovered' or g.status = 'unrecoverable' and $4 then 'missing' else g.status end,
    asks = case when g.status = 'recovered' or g.status = 'unrecoverable' and $4 then 0 else g.asks end,
    reason = case when g.status = 'recovered' or g.status = 'unrecoverable' and $4 then null else g.reason end,
    closed_at = case when g.status = 'recovered' or g.status = 'unrecoverable' and $4 then null else g.closed_at end;

-- name: adopt_gaps
-- A new run goes on with what earlier ones left open (gaps_open).
update gateway.gaps
set run_id = $2
where route = $1 and status in ('missing', 'asked') and run_id <> $2;

-- name: close_gaps
-- What has arrived is recovered; what was refused as REPLAYED has been seen, and was no gap (gaps_run).
-- Returns how many that the run asked for are still to come.
with open as materialized (
    select route, event_id, asked_run
    from gateway.gaps
    where run_id = $1 and status in ('missing', 'asked')
), recovered as (
    update gateway.gaps g
    set status = 'recovered', reason = null, closed_at = now()
    from open o
    where g.route = o.route and g.event_id = o.event_id
      and exists (select from gateway.processed_events e
                  where e.route = o.route and e.event_id = o.event_id)
    returning g.event_id
), refused as (
    delete from gateway.gaps g
    using open o
    where g.route = o.route and g.event_id = o.event_id
      and exists (
          select from gateway.refusals f
          left join gateway.processed_events first on first.route = f.route and first.guard = f.digest
          where f.route = o.route and f.event_id = o.event_id
            and coalesce(first.type = any ($2::text[]), true))
    returning g.event_id
)
select count(*)
from open
where asked_run = $1 and event_id not in (select event_id from recovered)
  and event_id not in (select event_id from refused);

-- name: give_up_gaps
-- Says why these cannot be recovered (primary key).
update gateway.gaps g
set status = 'unrecoverable', reason = f.reason, closed_at = now()
from unnest($2::text[], $3::text[]) as f (event_id, reason)
where g.route = $1 and g.event_id = f.event_id and g.status in ('missing', 'asked');

-- name: give_up_old_gaps
-- What was asked for often enough, is older than the provider can be asked for, or so old that it may
-- have arrived and been forgotten since (gaps_run).
update gateway.gaps
set status = 'unrecoverable', closed_at = now(),
    reason = case when handled_at < $4 then 'older than the provider keeps it'
                  when occurred_at < $5 then 'older than retention.key: it may have come and been forgotten'
                  else 'asked for ' || asks || ' times; the last delivery: ' || coalesce(recorded, 'unknown') end
where run_id = $1 and status in ('missing', 'asked')
  and (handled_at < $4 or occurred_at < $5 or asks >= $2 and asked_at < now() - $3::interval);

-- name: next_gaps
-- What a run has to recover next, oldest first: not what it has asked for already, nor what was asked
-- for or delivered a moment ago, nor what may be older than the ledger remembers (gaps_run).
select event_id, handle
from gateway.gaps
where run_id = $1 and status in ('missing', 'asked') and is_first
  and asked_run is distinct from $1 and coalesce(asked_at, '-infinity') < now() - $2::interval
  and handled_at <= $3
order by occurred_at, event_id
limit $4;

-- name: ask_gap
-- Before a redelivery is asked for (primary key); no row where the event has arrived meanwhile.
update gateway.gaps g
set status = 'asked', asks = asks + 1, asked_at = now(), asked_run = $3
where g.route = $1 and g.event_id = $2 and g.status in ('missing', 'asked')
  and not exists (select from gateway.processed_events e where e.route = $1 and e.event_id = $2)
  and not exists (
      select from gateway.refusals f
      left join gateway.processed_events first on first.route = f.route and first.guard = f.digest
      where f.route = $1 and f.event_id = $2 and coalesce(first.type = any ($4::text[]), true))
returning asks;

-- name: explain_gap
-- Why it was not recovered this time, and whether that counts as asked for (primary key).
update gateway.gaps
set reason = $3, status = case when $4 then status else 'missing' end,
    asks = case when $4 then asks else asks - 1 end,
    asked_run = case when $4 then asked_run end
where route = $1 and event_id = $2 and status = 'asked';

-- name: count_reasons
-- What a run could not recover, by reason (gaps_run).
select status, coalesce(reason, case when status = 'asked' then 'asked for, and not arrived yet'
                                     when not is_first then 'only redeliveries of it are listed: its first delivery was before --since'
                                     else 'not asked for yet' end) as reason,
       count(*) as count
from gateway.gaps
where run_id = $1 and status in ('missing', 'asked', 'unrecoverable')
group by 1, 2
order by 3 desc, 1, 2
limit $2;

-- name: list_gaps
-- What a run could not recover, oldest first (gaps_run).
select event_id, type, status, occurred_at, asks, asked_at, recorded, reason
from gateway.gaps
where run_id = $1 and status in ('missing', 'asked', 'unrecoverable')
order by occurred_at, event_id
limit $2;

-- name: forget_gaps
-- Gaps that were closed long ago (gaps_closed).
delete from gateway.gaps
where ctid = any (array (
    select ctid
    from gateway.gaps
    where closed_at < now() - $1::interval
    order by closed_at
    limit $2
));

-- name: note_refusals
-- Delivery ids that were refused as REPLAYED: of the same bytes only so many (refusals_digest), so that
-- who has captured one request cannot fill the disk.
insert into gateway.refusals (route, event_id, digest)
select f.route, f.event_id, f.digest
from (
    select i.*, row_number() over (partition by i.route, i.digest order by i.event_id) as n
    from unnest($1::text[], $2::text[], $3::bytea[]) as i (route, event_id, digest)
) f
cross join lateral (
    select count(*) as kept
    from (select from gateway.refusals k where k.route = f.route and k.digest = f.digest limit $4) counted
) known
where known.kept + f.n <= $4
order by f.route, f.event_id
on conflict do nothing;

-- name: forget_refusals
-- Refused ids that are older than any key (refusals_at).
delete from gateway.refusals
where ctid = any (array (
    select ctid
    from gateway.refusals
    where refused_at < now() - $1::interval
    order by refused_at
    limit $2
));
