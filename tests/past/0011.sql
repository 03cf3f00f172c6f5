-- An encrypted route: sealed by the code of that time, under a key that tests/support/past.py has.

insert into gateway.processed_events
    (route, event_id, provider, type, received_at, digest, headers, key_id, body)
values
    ('vault', 'sealed', 'stripe', 'invoice.paid', now() - interval '5 h',
     '\xd6989a0ca1c1974a3a5b08d9ca617afcfbf50dcab1ff66dc5821eb25208be8ed', '{}', 'eecf49af1e3e0897',
     '\x01eecf49af1e3e08976f6192f508f2eee4476c16a31add95237fb3a4ed784c13dc10e46129e010b69f515800bb14509561f299bf9ae00ee44f50681cbe9f82fcff0b3d01e8120e033432610acd81c3ab16ea8a9902c822db93d16bc5ffc46674e8376a14fca9f015bb5fadc42595d75e49e24526cda9773e');

insert into gateway.deliveries (id, route, event_id, handler, status, runs, error, finished_at)
overriding system value
values (1000, 'vault', 'sealed', 'handlers.count', 'dead', 1, 'ValueError', now() - interval '4 h');

insert into gateway.attempts
    (delivery_id, number, started_at, finished_at, outcome, error, key_id, sealed)
values
    (1000, 1, now() - interval '4 h', now() - interval '4 h', 'dead', 'ValueError', 'eecf49af1e3e0897',
     '\x01eecf49af1e3e08976890f6e0472506d5dd0aa5a4646e62b25634af3ac5bdb68cbf5486d02be4b7951cc66958d05d0945f74297ab0f15782eeef0b66e9f30ff7aa5c65fd16c5c9f0e29de4c146c');

insert into gateway.effects (delivery_id, name, status, token, finished_at, key_id, sealed)
values
    (1000, 'receipt', 'done', gen_random_uuid(), now() - interval '4 h', 'eecf49af1e3e0897',
     '\x01eecf49af1e3e089785f8b3a224797a1dbfbbfcf1d56ed1e8f2e169a32cfb226a9eb07612bb63df6d713be02ed8f83e7c1055');
