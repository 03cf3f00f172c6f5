-- An event that reconcile fetched, the run that did it, and a delivery id that was refused.

insert into gateway.processed_events
    (route, event_id, provider, type, received_at, digest, headers, body, reconciled)
select 'stripe', 'fetched', 'stripe', 'invoice.paid', now() - interval '5 h', sha256(body),
       '{"content-type": "application/json", "x-note": "of the past"}', body, true
from convert_to('{"id":"fetched","n":1}', 'utf8') as body;

insert into gateway.deliveries (route, event_id, handler) values ('stripe', 'fetched', 'handlers.count');

insert into gateway.reconciliations
    (route, actor, since, until, dry_run, status, listed, missing, recovered, finished_at)
values ('stripe', 'anna', now() - interval '6 h', now(), false, 'done', 9, 1, 1, now());

insert into gateway.gaps
    (route, event_id, run_id, type, handle, handled_at, occurred_at, is_first, status, closed_at)
values ('stripe', 'fetched', 1, 'invoice.paid', '', now(), now(), true, 'recovered', now());

insert into gateway.refusals (route, event_id, digest) values ('github', 'refused', '\x00');
