-- name: take_reconciliation
-- Whether this transaction may reconcile the route now: one at a time does, for as long as it is open, be
-- it idle.
select pg_try_advisory_xact_lock(hashtextextended('reconcile ' || $1, 20261117))
from set_config('idle_in_transaction_session_timeout', '0', true) as unbounded;

-- name: begin_reconciliation
-- A new run, with an audit row if a person started it.
with begun as (
    insert into gateway.reconciliations (route, actor, since, until, note, dry_run)
    values ($1, $2, $3, $4, $5, $6)
    returning id, route, actor
), noted as (
    insert into gateway.audit (actor, action, route, reason)
    select actor, 'reconcile', route, 'run ' || id || ', since ' || to_char($3 at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
           || case when $6 then ', dry run' else '' end
    from begun
    where actor <> 'schedule'
)
select id from begun;

-- name: resume_reconciliation
-- Lets a run be gone on with that has not come to its end, unless another one of its route runs.
update gateway.reconciliations
set status = 'running', taken = false, error = null, stepped_at = now(), finished_at = null,
    since = greatest(since, $2)
where id = $1 and status in ('stopped', 'failed')
returning id;

-- name: start_reconciliation
-- A process takes a run up that was begun; no row where it was stopped before.
update gateway.reconciliations
set taken = true, stepped_at = now()
where id = $1 and status = 'running'
returning id;

-- name: end_reconciliation
-- Says how a run ended; nothing where it is no longer running.
update gateway.reconciliations
set status = $2, error = $3, stepped_at = now(), finished_at = now()
where id = $1 and status = 'running'
returning id;

-- name: abandon_reconciliations
-- Runs of the route whose process is gone: the lock says that nobody is at them, and they were not
-- begun a moment ago, to be taken up in the next (reconciliations_running).
update gateway.reconciliations
set status = 'stopped', error = 'its process was ended', finished_at = stepped_at
where route = $1 and status = 'running' and (taken or stepped_at < now() - interval '30 s')
returning id;

-- name: step_reconciliation
-- How far a run has come; no row where it is no longer this process's to go on with.
update gateway.reconciliations
set phase = $2, cursor = $3, listed = listed + $4, stepped_at = now()
where id = $1 and status = 'running'
returning id;

-- name: count_reconciliation
-- What became of the gaps of a run (gaps_run).
update gateway.reconciliations r
set missing = coalesce($2, counted.missing), recovered = counted.recovered,
    unrecoverable = counted.unrecoverable, stepped_at = now()
from (
    select count(*) as missing, count(*) filter (where g.status = 'recovered') as recovered,
           count(*) filter (where g.status = 'unrecoverable') as unrecoverable
    from gateway.gaps g
    where g.run_id = $1
) counted
where r.id = $1
returning r.id;

-- name: find_reconciliation
-- One run (primary key).
select id, route, actor, since, until, note, dry_run,
       case when status = 'running' and stepped_at < now() - interval '2 min' then 'interrupted'
            else status end as status,
       phase, cursor, listed, missing, recovered, missing - recovered - unrecoverable as outstanding,
       unrecoverable, error, started_at, stepped_at, finished_at
from gateway.reconciliations
where id = $1;

-- name: list_reconciliations
-- Runs, newest first, from behind a mark, of one route or of all (primary key).
select id, route, actor, since, until, note, dry_run,
       case when status = 'running' and stepped_at < now() - interval '2 min' then 'interrupted'
            else status end as status,
       phase, cursor, listed, missing, recovered, missing - recovered - unrecoverable as outstanding,
       unrecoverable, error, started_at, stepped_at, finished_at
from gateway.reconciliations
where coalesce(route = $1, true) and id < coalesce($3, 9223372036854775807)
order by id desc
limit $2;

-- name: last_reconciliations
-- The newest run of each route that was not dry (reconciliations_route).
with recursive routes as (
    (select route from gateway.reconciliations order by route limit 1)
    union all
    select next.route
    from routes r
    cross join lateral (
        select route from gateway.reconciliations where route > r.route order by route limit 1
    ) next
)
select last.*
from routes r
cross join lateral (
    select id, route, actor, since, until, note, dry_run,
           case when status = 'running' and stepped_at < now() - interval '2 min' then 'interrupted'
                else status end as status,
           phase, cursor, listed, missing, recovered,
           missing - recovered - unrecoverable as outstanding, unrecoverable, error, started_at,
           stepped_at, finished_at
    from gateway.reconciliations
    where route = r.route and not dry_run
    order by id desc
    limit 1
) last
order by last.route;

-- name: last_scheduled
-- The newest scheduled run of a route, until when the last good one looked, and from when on the very
-- first one was to (reconciliations_route).
select last.id, last.status, last.finished_at, good.until as good_until, oldest.since as first_since
from (values ($1::text)) as r (route)
left join lateral (
    select id, status, finished_at
    from gateway.reconciliations
    where route = r.route and actor = 'schedule'
    order by id desc
    limit 1
) last on true
left join lateral (
    select until
    from gateway.reconciliations
    where route = r.route and actor = 'schedule' and status = 'done'
    order by id desc
    limit 1
) good on true
left join lateral (
    select since
    from gateway.reconciliations
    where route = r.route and actor = 'schedule'
    order by id
    limit 1
) oldest on true;

-- name: find_resumable
-- The newest run of a route that was not dry and has not come to its end (reconciliations_route).
select id
from (
    select id, status
    from gateway.reconciliations
    where route = $1 and not dry_run
    order by id desc
    limit 1
) last
where status <> 'done';

-- name: forget_reconciliations
-- Runs of long ago, but for those that the next one goes on from.
delete from gateway.reconciliations r
where r.finished_at < now() - $1::interval
  and exists (
      select from gateway.reconciliations later
      where later.route = r.route and later.id > r.id and later.actor = r.actor
        and later.status = 'done' and not later.dry_run
  );

-- name: find_unseen
-- Which of these ids the ledger has neither claimed nor refused as REPEATED_BODY (primary keys). A refusal counts only if
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
-- What has arrived is recovered; what was refused as REPEATED_BODY has been seen, and was no gap (gaps_run).
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
