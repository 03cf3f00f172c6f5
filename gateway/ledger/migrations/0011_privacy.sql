-- Events of encrypted routes: headers and body sealed together, errors and results sealed too.
-- oldest code: 9

alter table gateway.processed_events add column key_id text;
comment on column gateway.processed_events.key_id is
    'The key under which body holds headers and body sealed; digest and guard are keyed then. Null: as they came.';
create index processed_events_key on gateway.processed_events (key_id, route, event_id)
    where key_id is not null and body is not null;

alter table gateway.attempts add column sealed bytea, add column key_id text;
comment on column gateway.attempts.sealed is
    'The whole error, sealed; error then names only its class and place.';
create index attempts_key on gateway.attempts (key_id, delivery_id, number) where key_id is not null;

alter table gateway.effects add column sealed bytea, add column key_id text;
comment on column gateway.effects.sealed is 'The result, sealed; result is null then.';
create index effects_key on gateway.effects (key_id, delivery_id, name) where key_id is not null;

create function gateway.settle_sealed(
    delivery_id bigint,
    token       uuid,
    new_status  text,
    result      text,
    burned      integer,
    delay       interval,
    reason      text,
    detail      text,
    max_losses  integer,
    sealed      bytea,
    key_id      text
) returns text
language plpgsql
as $$
#variable_conflict use_variable
begin
    new_status := gateway.settle(
        delivery_id, token, new_status, result, burned, delay, reason, detail, max_losses);
    update gateway.attempts a set sealed = sealed, key_id = key_id
    where a.delivery_id = delivery_id
      and a.number = (select d.runs from gateway.deliveries d where d.id = delivery_id);
    return new_status;
end
$$;
comment on function gateway.settle_sealed is
    'gateway.settle for a run on an encrypted route: the whole error is kept sealed with its attempt.';
