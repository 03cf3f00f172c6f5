-- While a delivery runs, no other transaction updates its row: a handler may run at REPEATABLE READ or SERIALIZABLE,
-- where settling a row that a heartbeat has updated since the snapshot fails every time. A heartbeat therefore
-- updates the row of the worker: it says which leases the worker holds, and until when. A lease has expired if its
-- own deadline, which is set once, has passed and no worker holds it. A lease whose worker never heard of it (the
-- answer was lost on the way) is in no heartbeat, and expires.
-- oldest code: 22

alter table gateway.workers add column held uuid[] not null default '{}', add column held_until timestamptz;
comment on column gateway.workers.held is 'The tokens of the leases that the last heartbeat kept alive.';
comment on column gateway.workers.held_until is
    'Until when they are alive without another heartbeat. Null: the worker has sent none.';
comment on column gateway.deliveries.leased_until is
    'The lease is valid until then, and for as long as a worker''s heartbeats name its token.';

-- Settle comes in two forms that share this function. In the handler's transaction (settle_done) the next delivery
-- of an ordering key cannot be advanced: the snapshot may be older than that delivery. The worker does it after the
-- commit, and the sweep does it for a worker that was killed in between.
create function gateway.end_run(
    delivery_id bigint,
    token       uuid,
    new_status  text,
    result      text,
    burned      integer,
    delay       interval,
    reason      text,
    detail      text,
    max_losses  integer,
    sealed      bytea,  -- on an encrypted route: the whole error
    key_id      text
) returns text
language plpgsql
as $$
#variable_conflict use_variable
declare
    lost_before integer;
    is_counted  boolean;
    run         integer;
    began_at    timestamptz;
    its_route   text;
    kept        interval;
    ended_at    timestamptz;
begin
    if result = 'lost' then
        -- A loss does not count against the delivery if the server itself was restarted meanwhile.
        select d.losses, pg_postmaster_start_time() <= d.leased_at into lost_before, is_counted
        from gateway.deliveries d
        where d.id = delivery_id and d.lease_token = token
        for update;
        if not is_counted then
            result := 'released';
        elsif lost_before + 1 >= max_losses then
            new_status := 'dead';
            reason := 'WORKER_LOST: ' || lost_before + 1 || ' runs in a row were lost; the last: '
                      || reason;
        end if;
    end if;

    ended_at := clock_timestamp();
    update gateway.deliveries d
    set status = new_status,
        attempts = d.attempts + burned,
        losses = case result when 'lost' then d.losses + 1 when 'released' then d.losses else 0 end,
        due_at = ended_at + delay,
        error = reason,
        lease_token = null,
        leased_until = null,
        slot = null,
        finished_at = case when new_status in ('done', 'dead') then ended_at end
    where d.id = delivery_id and d.lease_token = token  -- only a running delivery has a token
    returning d.runs, d.leased_at, d.route into run, began_at, its_route;
    if not found then
        raise exception 'delivery % belongs to another run now', delivery_id using errcode = 'GW001';
    end if;

    select r.key into kept from gateway.retention r where r.route = its_route;
    insert into gateway.attempts
        (delivery_id, number, started_at, finished_at, outcome, error, sealed, key_id, until)
    values (delivery_id, run, began_at, ended_at, result, coalesce(detail, reason), sealed, key_id,
            gateway.forget_on(ended_at, coalesce(kept, interval '35 days')));
    return new_status;
end
$$;
comment on function gateway.end_run is
    'Ends a run under its fence; raises GW001 and changes nothing if the lease was lost.';

create or replace function gateway.settle(
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
    new_status := gateway.end_run(
        delivery_id, token, new_status, result, burned, delay, reason, detail, max_losses, sealed, key_id);
    if new_status <> 'pending' then
        perform gateway.advance(d.route, d.handler, d.order_key)
        from gateway.deliveries d
        where d.id = delivery_id and d.order_key is not null;
    end if;
    return new_status;
end
$$;
comment on function gateway.settle is
    'Settles a run in a transaction of the gateway''s own, and advances its ordering key.';

create or replace function gateway.settle_done(delivery_id bigint, token uuid) returns void
language plpgsql
as $$
begin
    perform gateway.end_run(delivery_id, token, 'done', 'done', 1, '0', null, null, null, null, null);
end
$$;
comment on function gateway.settle_done is
    'Completes a run in its handler''s transaction, at any isolation level. The caller advances the ordering key after the commit.';
