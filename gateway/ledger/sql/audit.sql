-- name: note_reveal
-- Who has had encrypted events shown to him, and why.
insert into gateway.audit (actor, action, route, event_id, reason)
select $1, 'reveal', k.route, k.event_id, $2
from unnest($3::text[], $4::text[]) as k (route, event_id);

-- name: note_test_event
-- Who has a made-up event of a type sent to a route.
insert into gateway.audit (actor, action, route, reason) values ($1, 'send test', $2, $3);

-- name: list_all_audit
-- What people and retention did, newest first, from behind a mark (primary key).
select id, at, actor, action, delivery_id, effect, order_id, route, handler, event_id, reason
from gateway.audit
where id < coalesce($2, 9223372036854775807)
order by id desc
limit $1;
