-- How long a route keeps what it has, and an event whose payload is filed under a day.

insert into gateway.retention (route, key, payload) values ('stripe', '35 days', '14 days');

with filed as (
    insert into gateway.payloads (id, until, route, event_id, headers, body)
    select nextval('gateway.payload_ids'), gateway.forget_on(now(), interval '14 days'), 'stripe', 'filed',
           '{"content-type": "application/json", "x-note": "of the past"}',
           convert_to('{"id":"filed","n":1}', 'utf8')
    returning id, until, body
)
insert into gateway.processed_events
    (route, event_id, provider, type, received_at, digest, payload_id, payload_until)
select 'stripe', 'filed', 'stripe', 'invoice.paid', now() - interval '5 h', sha256(body), id, until
from filed;

insert into gateway.deliveries (route, event_id, handler) values ('stripe', 'filed', 'handlers.count');
