-- A delivery that kills its worker takes the leases of its neighbours with it. From the second time on it and its
-- neighbours are suspects: each runs alone, in a process of its own, and only losses while alone count against it.
-- oldest code: 26

alter table gateway.deliveries add column workers_lost integer not null default 0;
comment on column gateway.deliveries.workers_lost is
    'How many times in a row its worker was lost while it ran. From 2 on it runs alone.';
comment on column gateway.deliveries.losses is
    'How many runs in a row were lost by its own doing: its connection broke, or its worker was lost while it ran alone.';

create index deliveries_suspect on gateway.deliveries (route, handler, due_at, id)
    where status = 'pending' and workers_lost >= 2;

alter table gateway.workers add column isolated boolean not null default false;
comment on column gateway.workers.isolated is
    'A process that another worker has started, and that runs suspects only, one at a time.';

drop function gateway.lease_limited;
create function gateway.lease_limited(
    of_route    text,
    of_handler  text,
    concurrency integer,   -- null: no limit
    period      interval,  -- null: no rate
    room        integer,
    lease       interval,
    large_room  bigint,    -- large bodies are leased while those before them are fewer bytes than this
    small_bytes integer,   -- bodies up to this size are leased in any case
    suspects    boolean    -- lease suspects only, or none of them
) returns table (id bigint, lease_token uuid)
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    -- One caller at a time: two that chose the same slot would only reject each other.
    perform pg_advisory_xact_lock(gateway.turn_lock(of_route, of_handler, ''));
    -- If the clock was set back, a place would be taken until the earlier time comes again.
    update gateway.places set free_at = clock_timestamp() + period
    where route = of_route and handler = of_handler and free_at > clock_timestamp() + period;
    return query
    with due as materialized (  -- one of the two branches, by a one-time filter: each has its own index
        select * from (
            select id, due_at, event_id
            from gateway.deliveries
            where not suspects and route = of_route and handler = of_handler
              and status = 'pending' and workers_lost < 2 and due_at <= clock_timestamp()
            order by due_at, id
            limit least(room, concurrency)
            for update skip locked
        ) fresh
        union all
        select * from (
            select id, due_at, event_id
            from gateway.deliveries
            where suspects and route = of_route and handler = of_handler
              and status = 'pending' and workers_lost >= 2 and due_at <= clock_timestamp()
            order by due_at, id
            limit least(room, concurrency)
            for update skip locked
        ) suspect
    ), sized as (  -- octet_length of a bytea reads its header only: no body is fetched here
        select due.id, due.due_at, coalesce(octet_length(p.body), 0) as bytes
        from due
        cross join lateral (  -- as a plain join, it may be one with all events
            select payload_id, payload_until from gateway.processed_events
            where route = of_route and event_id = due.event_id
            limit 1
        ) e
        left join lateral (  -- of one day's table
            select body from gateway.payloads
            where id = e.payload_id and until = e.payload_until
            limit 1
        ) p on true
    ), fitting as (
        select s.id, row_number() over (order by s.due_at, s.id) as n
        from (
            select id, due_at, bytes, sum(bytes) filter (where bytes > small_bytes)
                over (order by due_at, id rows between unbounded preceding and 1 preceding) as before
            from sized
        ) s
        where s.bytes <= small_bytes or coalesce(s.before, 0) < large_room
    ), slots as (
        select s.slot, row_number() over (order by s.slot) as n
        from generate_series(1, concurrency) as s (slot)
        where not exists (
            select from gateway.deliveries r
            where r.route = of_route and r.handler = of_handler
              and r.status = 'running' and r.slot = s.slot and r.slot_token = r.lease_token)
    ), places as (
        select p.place, row_number() over (order by p.place) as n
        from (
            select place
            from gateway.places
            where route = of_route and handler = of_handler and free_at <= clock_timestamp()
              and period is not null
            order by place
            limit room
            for update skip locked
        ) p
    ), starts as materialized (
        select fitting.id, slots.slot, places.place, gen_random_uuid() as token
        from fitting
        left join slots using (n)
        left join places using (n)
        where (concurrency is null or slots.slot is not null)
          and (period is null or places.place is not null)
    ), taken as (
        update gateway.places p set free_at = clock_timestamp() + period
        from starts
        where p.route = of_route and p.handler = of_handler and p.place = starts.place
    )
    update gateway.deliveries d
    set status = 'running', runs = d.runs + 1, lease_token = starts.token,
        leased_at = clock_timestamp(), leased_until = clock_timestamp() + lease,
        slot = starts.slot, slot_token = starts.token
    from starts
    where d.id = starts.id
    returning d.id, d.lease_token;
end
$$;
comment on function gateway.lease_limited is
    'Leases due deliveries of a handler, as far as its concurrency, its rate and the bytes of the bodies allow.';

create or replace function gateway.end_run(
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
