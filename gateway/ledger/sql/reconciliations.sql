-- name: take_reconciliation
-- Whether this transaction may reconcile the route now: one at a time does, for as long as it is open, be
-- it idle.
select pg_try_advisory_xact_lock(hashtextextended('reconcile ' || $1, 20261117))
from set_config('idle_in_transaction_session_timeout', '0', true) as unbounded;

-- name: begin_reconciliation
-- A new run, with an audit row where a person ordered it.
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
