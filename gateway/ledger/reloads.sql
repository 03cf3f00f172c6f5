-- name: add_secret_uses
-- Adds uses of secrets; forgets those that nothing has used for very long. In the order of their keys:
-- two processes that crossed would wait for each other. No process's clock can name a time to come.
with used as materialized (
    select route, secret, uses, least(last_used_at, now()) as last_used_at
    from unnest($2::text[], $3::text[], $4::bigint[], $5::timestamptz[])
        as u (route, secret, uses, last_used_at)
    order by route, secret
), forgotten as (
    delete from gateway.secret_uses
    where last_used_at < now() - $1::interval
      and (route, secret) not in (select route, secret from used)
)
insert into gateway.secret_uses as s (route, secret, first_used_at, last_used_at, uses)
select route, secret, last_used_at, last_used_at, uses from used
on conflict (route, secret) do update
set uses = s.uses + excluded.uses, last_used_at = greatest(s.last_used_at, excluded.last_used_at);

-- name: list_secret_uses
-- When each secret was used.
select route, secret, first_used_at, last_used_at, uses
from gateway.secret_uses
order by route, secret;

-- name: keep_reload
-- Says how the last reload of a serve process went; forgets those of processes that are long gone.
with forgotten as (
    delete from gateway.reloads
    where at < now() - $1::interval and (host, pid) <> ($2, $3)
)
insert into gateway.reloads (host, pid, outcome, error)
values ($2, $3, $4, $5)
on conflict (host, pid) do update
set at = now(), outcome = excluded.outcome, error = excluded.error;

-- name: forget_reload
-- A serve process ends, or begins under the number of one that was killed.
delete from gateway.reloads where host = $1 and pid = $2;

-- name: list_reloads
-- How the last reload of each serve process went.
select host, pid, at, outcome, error
from gateway.reloads
order by at desc, host, pid;

-- name: end_session
-- Keeps a session from being let in again, and forgets those that have run out since (primary key).
with over as (
    delete from gateway.ended_sessions where until < now()
)
insert into gateway.ended_sessions (id, until) values ($1, $2)
on conflict (id) do nothing;

-- name: has_ended
-- Whether a session was ended (primary key).
select exists (select from gateway.ended_sessions where id = $1);
