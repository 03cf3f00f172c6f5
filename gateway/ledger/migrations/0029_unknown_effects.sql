-- An effect of unknown outcome is a state that people see and resolve: a run went on without knowing whether the call
-- was done. Until now such an effect stayed 'begun', like one whose delivery is still retried.
-- oldest code: 29

alter table gateway.effects
    drop constraint effects_status_check,
    add constraint effects_status_check check (status in ('begun', 'unknown', 'done')),
    add column error text,
    add column unknown_at timestamptz;
comment on table gateway.effects is
    'Outside effects of deliveries: begun, unknown (a run went on without its outcome), or done.';
comment on column gateway.effects.error is
    'How the last call ended, by class and HTTP status: ReadTimeout, HTTPStatusError 500. Null: no error was seen, as of a killed worker.';
comment on column gateway.effects.unknown_at is 'When a run went on without its outcome.';

-- Deliveries that were done without the outcome of their effect, before this was a state.
update gateway.effects e set status = 'unknown', unknown_at = e.begun_at
from gateway.deliveries d
where d.id = e.delivery_id and d.status = 'done' and e.status = 'begun' and e.name not like 'erased:%';

create index effects_unknown on gateway.effects (unknown_at, delivery_id, name) where status = 'unknown';

alter table gateway.alerts
    drop constraint alerts_kind_check,
    add constraint alerts_kind_check check (kind in ('dead', 'backlog', 'effects'));

alter table gateway.audit add column effect text;
comment on column gateway.audit.effect is 'The effect that was retried or confirmed.';

alter table gateway.bulk_orders
    drop constraint bulk_orders_action_check,
    add constraint bulk_orders_action_check
        check (action in ('replay', 'discard', 'deliver', 'retry_effects', 'confirm_effects')),
    add column effects text not null default 'keep' check (effects in ('keep', 'retry')),
    add column effects_kept bigint not null default 0,
    add column effects_unknown bigint not null default 0;
comment on column gateway.bulk_orders.effects is 'Of a replay: whether effects of unknown outcome are made again.';
comment on column gateway.bulk_orders.effects_kept is 'Effects of the replayed deliveries that were done, and are not made again.';
comment on column gateway.bulk_orders.effects_unknown is 'Effects of the replayed deliveries whose outcome was unknown.';
