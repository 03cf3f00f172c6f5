-- What an event is about, an hour to look back at, and of what deliveries died.

insert into gateway.processed_events
    (route, event_id, provider, type, received_at, digest, headers, body, object_id)
select 'stripe', 'about', 'stripe', 'invoice.paid', now() - interval '5 h', sha256(body),
       '{"content-type": "application/json", "x-note": "of the past"}', body, 'in_1'
from convert_to('{"id":"about","n":1}', 'utf8') as body;

insert into gateway.deliveries (route, event_id, handler) values ('stripe', 'about', 'handlers.count');

insert into gateway.tally_hours (hour, route, handler, outcome, n)
values (date_trunc('hour', now()) - interval '9 h', 'stripe', '', 'accepted', 3);

insert into gateway.causes (route, handler, common, error)
values ('stripe', 'handlers.count', 'ValueError: boom', 'ValueError: boom');
update gateway.deliveries set cause = (select id from gateway.causes)
where status = 'dead' and route = 'stripe';
