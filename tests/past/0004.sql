-- Outside effects, one of which the end is unknown; a key with one whose turn it is and one that waits.

insert into gateway.processed_events
    (route, event_id, provider, type, received_at, digest, headers, body)
select 'stripe', id, 'stripe', 'invoice.paid', now() - interval '5 h', sha256(body),
       '{"content-type": "application/json", "x-note": "of the past"}', body
from unnest(array['acted', 'first', 'second']) as id,
     convert_to(format('{"id":"%s","n":1}', id), 'utf8') as body;

insert into gateway.deliveries
    (route, event_id, handler, status, runs, due_at, finished_at, error, order_key)
values
    ('stripe', 'acted', 'handlers.count', 'dead', 1, now(), now() - interval '4 h', 'ValueError: boom', null),
    ('stripe', 'first', 'handlers.count', 'pending', 0, now(), null, null, 'cus_1'),
    ('stripe', 'second', 'handlers.count', 'pending', 0, 'infinity', null, null, 'cus_1');

insert into gateway.effects (delivery_id, name, status, token, result, finished_at)
select d.id, e.name, e.status, gen_random_uuid(), e.result::json, case e.status when 'done' then now() end
from gateway.deliveries d,
     (values ('receipt', 'done', '{"id": "re_1"}'), ('letter', 'begun', null)) as e (name, status, result)
where d.event_id = 'acted';

insert into gateway.once_keys (route, handler, key, delivery_id, token, finished_at)
select route, handler, 'cus_2', id, gen_random_uuid(), finished_at
from gateway.deliveries
where event_id = 'done';

insert into gateway.handlers (route, handler, on_dead) values ('stripe', 'handlers.count', 'block');
insert into gateway.places (route, handler, place) values ('stripe', 'handlers.count', 1);
