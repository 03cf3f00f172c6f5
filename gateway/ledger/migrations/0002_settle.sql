-- Cheaper ends of runs.

-- A check constraint is read anew from its stored text by every statement, which was a quarter of
-- the cost of a settlement; that of a domain is kept by the session.
create domain gateway.delivery_status as text
    check (value in ('pending', 'running', 'done', 'dead', 'discarded'));
create domain gateway.attempt_outcome as text
    check (value in ('done', 'retry', 'dead', 'deferred', 'lost', 'released'));

drop index gateway.deliveries_due, gateway.deliveries_leased, gateway.deliveries_dead;
alter table gateway.deliveries
    drop constraint deliveries_status_check,
    alter column status type gateway.delivery_status;
create index deliveries_due on gateway.deliveries (route, handler, due_at, id) where status = 'pending';
create index deliveries_leased on gateway.deliveries (leased_until) where status = 'running';
create index deliveries_dead on gateway.deliveries (finished_at, id) where status = 'dead';
alter table gateway.attempts
    drop constraint attempts_outcome_check,
    alter column outcome type gateway.attempt_outcome;

-- The end of a run as a function that raises where the fence is lost, so that it can share a round
-- trip with the commit: a statement that merely finds no row would let the commit happen.

create function gateway.settle(
    delivery_id bigint,
    token       uuid,
    new_status  text,
    result      text,
    burned      integer,
    delay       interval,
    reason      text,
    detail      text,
    max_losses  integer
) returns text
language plpgsql
as $$
#variable_conflict use_variable
declare
    lost_before integer;
    is_counted  boolean;
    run         integer;
    began_at    timestamptz;
begin
    if result = 'lost' then
        -- Not counted against the delivery where the server itself was restarted meanwhile.
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

    update gateway.deliveries d
    set status = new_status,
        attempts = d.attempts + burned,
        losses = case result when 'lost' then d.losses + 1 when 'released' then d.losses else 0 end,
        due_at = clock_timestamp() + delay,
        error = reason,
        lease_token = null,
        leased_until = null,
        finished_at = case when new_status in ('done', 'dead') then clock_timestamp() end
    where d.id = delivery_id and d.lease_token = token  -- which only a running one has
    returning d.runs, d.leased_at into run, began_at;
    if not found then
        raise exception 'delivery % belongs to another run now', delivery_id using errcode = 'GW001';
    end if;

    insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome, error)
    values (delivery_id, run, began_at, clock_timestamp(), result, coalesce(detail, reason));
    return new_status;
end
$$;
comment on function gateway.settle is
    'Ends a run under its fence; raises GW001 and changes nothing where the lease was lost.';

create function gateway.settle_done(delivery_id bigint, token uuid) returns void
language plpgsql
as $$
begin
    perform gateway.settle(delivery_id, token, 'done', 'done', 1, '0', null, null, null);
end
$$;
comment on function gateway.settle_done is
    'gateway.settle for a run that ended well: parsed anew for each run, so it has few arguments.';
