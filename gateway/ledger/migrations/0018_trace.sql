-- Traces: where an event was received, so that its runs are of the same trace.
-- oldest code: 17

alter table gateway.processed_events add column trace text;
comment on column gateway.processed_events.trace is 'The traceparent of the request that brought it; null where nothing was traced.';

create or replace view gateway.events as
select e.route, e.event_id, e.provider, e.type, e.account, e.livemode, e.occurred_at, e.received_at, e.digest,
       e.replay, e.guard, e.replay_of, e.spooled, e.reconciled, e.verified_by, e.clock_s, e.unverified,
       e.object_id, e.payload_id, e.payload_until, e.sealed, p.headers, p.body, p.key_id, e.trace
from gateway.processed_events e
left join gateway.payloads p on p.id = e.payload_id and p.until = e.payload_until;
