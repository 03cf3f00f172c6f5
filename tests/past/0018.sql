-- Where an event was received.

with filed as (
    insert into gateway.payloads (id, until, route, event_id, headers, body)
    select nextval('gateway.payload_ids'), gateway.forget_on(now(), interval '14 days'), 'stripe', 'traced',
           '{"content-type": "application/json", "x-note": "of the past"}',
           convert_to('{"id":"traced","n":1}', 'utf8')
    returning id, until, body
)
insert into gateway.processed_events
    (route, event_id, provider, type, received_at, digest, payload_id, payload_until, trace)
select 'stripe', 'traced', 'stripe', 'invoice.paid', now() - interval '5 h', sha256(body), id, until,
       '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
from filed;

insert into gateway.deliveries (route, event_id, handler) values ('stripe', 'traced', 'handlers.count');
