-- Every state of a delivery, an event for nobody, one whose payload is gone, and bytes that came twice.

insert into gateway.processed_events
    (route, event_id, provider, type, account, received_at, digest, headers, body)
select 'stripe', id, 'stripe', 'invoice.paid', 'acct_1', now() - interval '5 h', sha256(body),
       '{"content-type": "application/json", "x-note": "of the past"}', body
from unnest(array['pending', 'running', 'done', 'dead', 'discarded', 'unheard', 'pruned']) as id,
     convert_to(format('{"id":"%s","n":1}', id), 'utf8') as body;
update gateway.processed_events set headers = null, body = null, account = null where event_id = 'pruned';

insert into gateway.processed_events
    (route, event_id, provider, type, received_at, digest, headers, body, replay, guard, replay_of)
select 'github', id, 'github', 'push', now() - interval '5 h', sha256(body),
       '{"content-type": "application/json", "x-note": "of the past"}', body, policy,
       case when first is null then sha256(body) end, first
from (values ('guarded', 'refuse', null), ('repeated', 'flag', 'guarded')) as e (id, policy, first),
     convert_to(format('{"id":"%s","n":1}', id), 'utf8') as body;

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
             ('github', 'guarded', 'done', 1), ('github', 'repeated', 'pending', 0))
     as d (route, id, status, runs);

insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome, error)
select id, 1, now() - interval '5 h', now() - interval '4 h',
       case status when 'done' then 'done' else 'dead' end,
       case when status <> 'done' then 'Traceback: ' || error end
from gateway.deliveries
where status in ('done', 'dead', 'discarded');

insert into gateway.workers (id, host, pid, handlers)
values (gen_random_uuid(), 'old', 1, '{stripe handlers.count}');

insert into gateway.audit (actor, action, delivery_id, route, event_id, reason)
select 'anna', 'discard', id, route, event_id, 'not ours'
from gateway.deliveries
where event_id = 'discarded';
