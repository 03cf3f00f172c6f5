-- An event of which is known how it was verified.

insert into gateway.processed_events
    (route, event_id, provider, type, received_at, digest, headers, body, verified_by, clock_s)
select 'stripe', 'verified', 'stripe', 'invoice.paid', now() - interval '5 h', sha256(body),
       '{"content-type": "application/json", "x-note": "of the past"}', body,
       'env:STRIPE_WEBHOOK_SECRET', 0.5
from convert_to('{"id":"verified","n":1}', 'utf8') as body;

insert into gateway.deliveries (route, event_id, handler) values ('stripe', 'verified', 'handlers.count');
