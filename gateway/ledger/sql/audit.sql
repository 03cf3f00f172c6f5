-- name: list_all_audit
-- What people and retention did, newest first, from behind a mark (primary key).
select id, at, actor, action, delivery_id, order_id, route, handler, event_id, reason
from gateway.audit
where id < coalesce($2, 9223372036854775807)
order by id desc
limit $1;
