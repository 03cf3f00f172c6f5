-- What handlers may ask for: effects that happen once, an order, and a pace.
-- oldest code: 3

-- The outside effects of a delivery (ctx.once): begun before the call, done with its result after it.
create table gateway.effects (
    delivery_id  bigint      not null,
    name         text        not null,
    status       text        not null default 'begun' check (status in ('begun', 'done')),
    -- The lease under which it was begun last.
    token        uuid        not null,
    -- How often it was begun: more than once where a call's end is unknown.
    calls        integer     not null default 1,
    result       json,
    begun_at     timestamptz not null default now(),
    finished_at  timestamptz,
    primary key (delivery_id, name)
);
comment on table gateway.effects is 'Outside effects of deliveries: begun, of which the end is unknown, or done.';

-- Which delivery acts for its key (once_per): it has finished, or is at it under this lease.
create table gateway.once_keys (
    route        text        not null,
    handler      text        not null,
    key          text        not null,
    delivery_id  bigint      not null,
    token        uuid        not null,
    finished_at  timestamptz,
    primary key (route, handler, key)
);
comment on table gateway.once_keys is 'The delivery that acts, where a handler acts once per key.';
create index once_keys_delivery on gateway.once_keys (delivery_id);

-- What workers say of their handlers, for the functions below.
create table gateway.handlers (
    route        text        not null,
    handler      text        not null,
    on_dead      text        not null check (on_dead in ('pass', 'block')),
    primary key (route, handler)
);
comment on table gateway.handlers is 'Whether a dead delivery blocks its key, where there is an order.';

-- A start within a rate takes a place until its period has passed: there are no more starts than places.
create table gateway.places (
    route        text        not null,
    handler      text        not null,
    place        integer     not null,
    free_at      timestamptz not null default '-infinity',
    primary key (route, handler, place)
);
comment on table gateway.places is 'Handlers with a rate: when each place in the period is free again.';

alter table gateway.deliveries
    add column order_key text,
    add column slot integer,
    add column slot_token uuid;
comment on column gateway.deliveries.order_key is
    'Deliveries of a handler with the same key run one at a time. One that waits for its turn is due at infinity.';
comment on column gateway.deliveries.slot is
    'Handlers with a concurrency: the place of a running delivery among those that run at once.';

-- The order itself: of each key one delivery at most runs or may run, waiting for a retry included.
create unique index deliveries_turn on gateway.deliveries (route, handler, order_key)
    where order_key is not null and status in ('pending', 'running') and due_at < 'infinity';
create index deliveries_held on gateway.deliveries (route, handler, order_key, id)
    where order_key is not null and status = 'pending' and due_at = 'infinity';
create index deliveries_blocking on gateway.deliveries (route, handler, order_key)
    where order_key is not null and status = 'dead';
-- The concurrency itself. A slot is held under the lease with which it was taken, and under no other.
create unique index deliveries_slot on gateway.deliveries (route, handler, slot)
    where slot is not null and status = 'running' and slot_token = lease_token;

alter domain gateway.attempt_outcome drop constraint attempt_outcome_check;
alter domain gateway.attempt_outcome add constraint attempt_outcome_check
    check (value in ('done', 'retry', 'dead', 'deferred', 'lost', 'released', 'skipped')) not valid;

create function gateway.turn_lock(route text, handler text, key text) returns bigint
language sql immutable
return hashtextextended(route || ' ' || handler || ' ' || key, 20261116);
comment on function gateway.turn_lock is 'The advisory lock under which a key''s turn is given.';

-- Gives the turn to the first delivery that waits for it, unless another of the key has it.
-- Whoever adds a delivery calls it after the commit, whoever ends one before it: one of the two, which
-- take turns by the lock, sees both. Statements after the lock see what was committed before it was had.
create function gateway.advance(of_route text, of_handler text, of_key text) returns bigint
language plpgsql
set enable_seqscan = off
as $$
declare
    next_id bigint;
begin
    perform pg_advisory_xact_lock(gateway.turn_lock(of_route, of_handler, of_key));
    loop
        if exists (
            select from gateway.deliveries d
            where d.route = of_route and d.handler = of_handler and d.order_key = of_key
              and d.status in ('pending', 'running') and d.due_at < 'infinity'
        ) or exists (
            select from gateway.deliveries d
            where d.route = of_route and d.handler = of_handler and d.order_key = of_key
              and d.status = 'dead'
        ) and exists (
            select from gateway.handlers h
            where h.route = of_route and h.handler = of_handler and h.on_dead = 'block'
        ) then
            return null;
        end if;
        select d.id into next_id
        from gateway.deliveries d
        where d.route = of_route and d.handler = of_handler and d.order_key = of_key
          and d.status = 'pending' and d.due_at = 'infinity'
        order by d.id
        limit 1;
        if not found then
            return null;
        end if;
        update gateway.deliveries d set due_at = clock_timestamp()
        where d.id = next_id and d.status = 'pending' and d.due_at = 'infinity';
        if found then
            return next_id;
        end if;  -- discarded this very moment: the one behind it is next
    end loop;
end
$$;
comment on function gateway.advance is
    'Lets the first delivery of a key that waits for its turn be run; returns its id.';

-- Leases for a handler with a concurrency or a rate: as many as it has slots and places for.
create function gateway.lease_limited(
    of_route    text,
    of_handler  text,
    concurrency integer,   -- null: no limit
    period      interval,  -- null: no rate
    room        integer,
    lease       interval
) returns table (id bigint, lease_token uuid)
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    -- One at a time: two that chose the same slot would only refuse each other.
    perform pg_advisory_xact_lock(gateway.turn_lock(of_route, of_handler, ''));
    -- Where the clock was set back, a place would be taken until the time before comes again.
    update gateway.places set free_at = clock_timestamp() + period
    where route = of_route and handler = of_handler and free_at > clock_timestamp() + period;
    return query
    with due as materialized (
        select d.id, row_number() over (order by d.due_at, d.id) as n
        from (
            select id, due_at
            from gateway.deliveries
            where route = of_route and handler = of_handler
              and status = 'pending' and due_at <= clock_timestamp()
            order by due_at, id
            limit least(room, concurrency)
            for update skip locked
        ) d
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
        select due.id, slots.slot, places.place, gen_random_uuid() as token
        from due
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
    'Leases what is due of a handler, as far as its concurrency and its rate allow.';

create or replace function gateway.settle(
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
    its_route   text;
    its_handler text;
    its_key     text;
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
        slot = null,
        finished_at = case when new_status in ('done', 'dead') then clock_timestamp() end
    where d.id = delivery_id and d.lease_token = token  -- which only a running one has
    returning d.runs, d.leased_at, d.route, d.handler, d.order_key
    into run, began_at, its_route, its_handler, its_key;
    if not found then
        raise exception 'delivery % belongs to another run now', delivery_id using errcode = 'GW001';
    end if;

    insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome, error)
    values (delivery_id, run, began_at, clock_timestamp(), result, coalesce(detail, reason));
    if its_key is not null and new_status <> 'pending' then
        perform gateway.advance(its_route, its_handler, its_key);
    end if;
    return new_status;
end
$$;
