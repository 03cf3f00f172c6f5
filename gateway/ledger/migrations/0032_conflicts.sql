-- A run that ends in a conflict (a deadlock, a serialization failure) is lost, but not by the doing of its delivery: it must
-- not bring the delivery nearer to WORKER_LOST. Conflicts are counted apart from losses.
-- oldest code: 29

alter table gateway.deliveries add column conflicts integer not null default 0;
comment on column gateway.deliveries.conflicts is
    'How many runs in a row ended in a conflict: Postgres ended them in favour of others, or a statement was outdated.';

create or replace function gateway.end_run(
    delivery_id bigint,
    token       uuid,
    new_status  text,
    result      text,
    burned      integer,
    delay       interval,
    reason      text,
    detail      text,
    max_losses  integer,  -- null: it lost a conflict with another transaction, which is no loss by its own doing
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
        losses = case when result not in ('lost', 'released') then 0
                      when result = 'lost' and max_losses is not null then d.losses + 1
                      else d.losses end,
        conflicts = case when result not in ('lost', 'released') then 0
                         when result = 'lost' and max_losses is null then d.conflicts + 1
                         else d.conflicts end,
        workers_lost = case when result in ('lost', 'released') then d.workers_lost else 0 end,
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
