-- Events: in every state of their delivery, without a handler, pruned, sent twice with the same bytes, from the spool, with
-- effects, ordered by a key, delayed, fetched by reconcile, with every column that a request may fill.

create temporary table brought on commit drop as
select id, route, provider, type, convert_to(format('{"id":"%s","n":1}', id), 'utf8') as body
from unnest(array['pending', 'running', 'done', 'dead', 'discarded', 'unheard', 'pruned', 'spooled', 'acted', 'first',
                  'second', 'fetched', 'verified', 'about', 'traced']) as id,
     (values ('stripe', 'stripe', 'invoice.paid')) as e (route, provider, type)
union all
select id, route, provider, type, convert_to(format('{"id":"%s","n":1}', id), 'utf8')
from (values ('guarded', 'github', 'github', 'push'), ('repeated', 'github', 'github', 'push'),
             ('later', 'jobs', 'publish', 'jobs')) as e (id, route, provider, type);

insert into gateway.retention (route, key, payload) values ('stripe', '35 days', '14 days');

with filed as (
    insert into gateway.payloads (id, until, route, event_id, headers, body)
    select nextval('gateway.payload_ids'), gateway.forget_on(now(), interval '14 days'), route, id,
           '{"content-type": "application/json", "x-note": "of the past"}', body
    from brought
    where id <> 'pruned'
    returning id, until, event_id
)
insert into gateway.processed_events
    (route, event_id, provider, type, received_at, digest, payload_id, payload_until)
select b.route, b.id, b.provider, b.type, now() - interval '5 h', sha256(b.body), f.id, f.until
from brought b
left join filed f on f.event_id = b.id;

update gateway.processed_events set account = 'acct_1' where event_id in ('pending', 'done', 'dead');
update gateway.processed_events set spooled = true where event_id = 'spooled';
update gateway.processed_events set reconciled = true where event_id = 'fetched';
update gateway.processed_events set verified_by = 'env:STRIPE_WEBHOOK_SECRET', clock_s = 0.5 where event_id = 'verified';
update gateway.processed_events set object_id = 'in_1' where event_id = 'about';
update gateway.processed_events set trace = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
where event_id = 'traced';
update gateway.processed_events set repeats = 'refuse', guard = digest where event_id = 'guarded';
update gateway.processed_events set repeats = 'flag', repeat_of = 'guarded' where event_id = 'repeated';

-- Their deliveries and attempts.

insert into gateway.deliveries
    (route, event_id, handler, status, attempts, runs, due_at, error, finished_at,
     lease_token, leased_at, leased_until)
select route, id, 'handlers.count', status, least(runs, 1), runs, now() - interval '5 h',
       case when status in ('dead', 'discarded') then 'ValueError: boom' end,
       case when status in ('done', 'dead', 'discarded') then now() - interval '4 h' end,
       case when status = 'running' then gen_random_uuid() end,
       case when status = 'running' then now() - interval '5 h' end,
       case when status = 'running' then now() - interval '4 h' end
from (values ('stripe', 'pending', 'pending', 0), ('stripe', 'running', 'running', 1),
             ('stripe', 'done', 'done', 1), ('stripe', 'dead', 'dead', 1),
             ('stripe', 'discarded', 'discarded', 1), ('stripe', 'pruned', 'done', 1),
             ('github', 'guarded', 'done', 1), ('github', 'repeated', 'pending', 0),
             ('stripe', 'spooled', 'pending', 0), ('stripe', 'fetched', 'pending', 0),
             ('stripe', 'verified', 'pending', 0), ('stripe', 'about', 'pending', 0),
             ('stripe', 'traced', 'pending', 0), ('stripe', 'acted', 'dead', 1))
     as d (route, id, status, runs);

insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome, error)
select id, 1, now() - interval '5 h', now() - interval '4 h',
       case status when 'done' then 'done' else 'dead' end,
       case when status <> 'done' then 'Traceback: ' || error end
from gateway.deliveries
where status in ('done', 'dead', 'discarded');

insert into gateway.deliveries (route, event_id, handler, due_at, order_key)
values ('stripe', 'first', 'handlers.count', now(), 'cus_1'),
       ('stripe', 'second', 'handlers.count', 'infinity', 'cus_1');
insert into gateway.deliveries (route, event_id, handler, not_before, due_at)
values ('jobs', 'later', 'handlers.count', now() - interval '1 h', now() - interval '1 h');

insert into gateway.causes (route, handler, common, error)
values ('stripe', 'handlers.count', 'ValueError: boom', 'ValueError: boom');
update gateway.deliveries set cause = (select id from gateway.causes) where status = 'dead';

-- An encrypted event: sealed by the code of that time, under a key that tests/support/past.py has.

with filed as (
    insert into gateway.payloads (id, until, route, event_id, headers, key_id, body)
    values (nextval('gateway.payload_ids'), gateway.forget_on(now(), interval '14 days'), 'vault', 'sealed', '{}',
            'eecf49af1e3e0897',
            '\x01eecf49af1e3e08976f6192f508f2eee4476c16a31add95237fb3a4ed784c13dc10e46129e010b69f515800bb14509561f299bf9ae00ee44f50681cbe9f82fcff0b3d01e8120e033432610acd81c3ab16ea8a9902c822db93d16bc5ffc46674e8376a14fca9f015bb5fadc42595d75e49e24526cda9773e')
    returning id, until
)
insert into gateway.processed_events
    (route, event_id, provider, type, received_at, digest, sealed, payload_id, payload_until)
select 'vault', 'sealed', 'stripe', 'invoice.paid', now() - interval '5 h',
       '\xd6989a0ca1c1974a3a5b08d9ca617afcfbf50dcab1ff66dc5821eb25208be8ed', true, id, until
from filed;

insert into gateway.deliveries (id, route, event_id, handler, status, runs, error, finished_at)
overriding system value
values (1000, 'vault', 'sealed', 'handlers.count', 'dead', 1, 'ValueError', now() - interval '4 h');

insert into gateway.attempts
    (delivery_id, number, started_at, finished_at, outcome, error, key_id, sealed)
values
    (1000, 1, now() - interval '4 h', now() - interval '4 h', 'dead', 'ValueError', 'eecf49af1e3e0897',
     '\x01eecf49af1e3e08976890f6e0472506d5dd0aa5a4646e62b25634af3ac5bdb68cbf5486d02be4b7951cc66958d05d0945f74297ab0f15782eeef0b66e9f30ff7aa5c65fd16c5c9f0e29de4c146c');

-- Effects, keys, and the tables of handlers and workers.

insert into gateway.effects (delivery_id, name, status, token, result, finished_at)
select d.id, e.name, e.status, gen_random_uuid(), e.result::json, case e.status when 'done' then now() end
from gateway.deliveries d,
     (values ('receipt', 'done', '{"id": "re_1"}'), ('letter', 'begun', null)) as e (name, status, result)
where d.event_id = 'acted';
insert into gateway.effects (delivery_id, name, status, token, finished_at, key_id, sealed)
values
    (1000, 'receipt', 'done', gen_random_uuid(), now() - interval '4 h', 'eecf49af1e3e0897',
     '\x01eecf49af1e3e089785f8b3a224797a1dbfbbfcf1d56ed1e8f2e169a32cfb226a9eb07612bb63df6d713be02ed8f83e7c1055');

insert into gateway.once_keys (route, handler, key, delivery_id, token, finished_at)
select route, handler, 'cus_2', id, gen_random_uuid(), finished_at
from gateway.deliveries
where event_id = 'done';

insert into gateway.handlers (route, handler, on_dead) values ('stripe', 'handlers.count', 'block');
insert into gateway.places (route, handler, place) values ('stripe', 'handlers.count', 1);
insert into gateway.workers (id, host, pid, handlers)
values (gen_random_uuid(), 'old', 1, '{stripe handlers.count}');
insert into gateway.names (kind, name, identity, seen_at)
values ('handler', 'handlers.new_name', 'handlers.old_name', now());

-- Actions of people: a discard, a pause, a bulk replay that was stopped half-way.

insert into gateway.audit (actor, action, delivery_id, route, event_id, reason)
select 'anna', 'discard', id, route, event_id, 'not ours'
from gateway.deliveries
where event_id = 'discarded';
insert into gateway.pauses (route, handler, actor) values ('elsewhere', '', 'anna');
insert into gateway.audit (actor, action, route, handler) values ('anna', 'pause', 'elsewhere', '');
insert into gateway.bulk_orders
    (action, filter, actor, began_at, total, moved, mark_at, status, finished_at)
values ('replay', '{}', 'anna', now(), 5, 2, now() - interval '4 h', 'stopped', now());

-- Rejected requests, secrets, reconcile.

insert into gateway.rejected
    (route, at, code, cause, detail, method, path, sender, headers, body, size)
values
    ('stripe', now(), 'BAD_SIGNATURE', 'secret', 'signed with another secret', 'POST',
     '/webhooks/stripe', 'someone', '{}', '{}', 2);
insert into gateway.refusals (route, event_id, digest) values ('github', 'refused', '\x00');
insert into gateway.secret_uses (route, secret, first_used_at, last_used_at, uses)
values ('stripe', 'env:STRIPE_WEBHOOK_SECRET', now() - interval '9 d', now(), 12);
insert into gateway.reloads (host, pid, outcome) values ('old', 1, 'done');

insert into gateway.reconciliations
    (route, actor, since, until, dry_run, status, listed, missing, recovered, finished_at)
values ('stripe', 'anna', now() - interval '6 h', now(), false, 'done', 9, 1, 1, now());
insert into gateway.gaps
    (route, event_id, run_id, type, handle, handled_at, occurred_at, is_first, status, closed_at)
values ('stripe', 'fetched', 1, 'invoice.paid', '', now(), now(), true, 'recovered', now());

-- Statistics, alerts, the console.

insert into gateway.tallies (minute, route, handler, outcome, n, times)
values (date_trunc('minute', now()), 'stripe', 'handlers.count', 'done', 5, '{1,2,2}');
insert into gateway.tally_hours (hour, route, handler, outcome, n)
values (date_trunc('hour', now()) - interval '9 h', 'stripe', '', 'accepted', 3);
insert into gateway.totals (route, handler, outcome, n, last_at)
values ('stripe', '', 'duplicate', 7, now());
insert into gateway.alerts (kind, route, handler, raised_at, cleared_at, round)
values ('dead', 'elsewhere', 'handlers.count', now(), now(), 1);
insert into gateway.alert_messages (kind, route, handler, destination, id, message, status, next_at)
values ('dead', 'elsewhere', 'handlers.count', 'slack', 'msg_1', '{}', 'sent', now());
insert into gateway.ended_sessions (id, until) values ('nonce', now() + interval '6 h');
