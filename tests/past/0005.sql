-- A job with a delay, a pause, and an order for many that was stopped half way.

insert into gateway.processed_events
    (route, event_id, provider, type, received_at, digest, headers, body)
select 'jobs', 'later', 'publish', 'jobs', now() - interval '5 h', sha256(body),
       '{"content-type": "application/json", "x-note": "of the past"}', body
from convert_to('{"id":"later","n":1}', 'utf8') as body;

insert into gateway.deliveries (route, event_id, handler, not_before, due_at)
values ('jobs', 'later', 'handlers.count', now() - interval '1 h', now() - interval '1 h');

insert into gateway.pauses (route, handler, actor) values ('elsewhere', '', 'anna');
insert into gateway.audit (actor, action, route, handler) values ('anna', 'pause', 'elsewhere', '');

insert into gateway.bulk_orders
    (action, filter, actor, began_at, total, moved, mark_at, status, finished_at)
values ('replay', '{}', 'anna', now(), 5, 2, now() - interval '4 h', 'stopped', now());
