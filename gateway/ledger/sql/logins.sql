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
