-- An event from the spool.

insert into gateway.processed_events
    (route, event_id, provider, type, received_at, digest, headers, body, spooled)
select 'stripe', 'spooled', 'stripe', 'invoice.paid', now() - interval '5 h', sha256(body),
       '{"content-type": "application/json", "x-note": "of the past"}', body, true
from convert_to('{"id":"spooled","n":1}', 'utf8') as body;

insert into gateway.deliveries (route, event_id, handler)
values ('stripe', 'spooled', 'handlers.count');
