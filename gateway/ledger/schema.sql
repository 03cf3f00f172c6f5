-- The schema of the ledger, version 33, as the migrations leave it.
-- `make docs` writes this file, and a test compares it with what the migrations produce. To change
-- the schema, add a file to migrations/.

create table gateway.migrations (
    version     integer     not null,
    name        text        not null,
    checksum    text        not null,
    applied_at  timestamptz not null default now(),
    oldest_code integer,
    primary key (version)
);

create domain gateway.delivery_status as text
    check (value = any (array['pending', 'running', 'done', 'dead', 'discarded']));

create domain gateway.attempt_outcome as text
    check (value = any (array['done', 'retry', 'dead', 'deferred', 'lost', 'released', 'skipped']));

create table gateway.processed_events (
    route         text        not null,
    event_id      text        not null,
    provider      text        not null,
    type          text        not null,
    account       text,
    livemode      boolean,
    occurred_at   timestamptz,
    received_at   timestamptz not null,
    digest        bytea       not null,
    repeats       text,
    guard         bytea,
    repeat_of     text,
    spooled       boolean     not null default false,
    reconciled    boolean     not null default false,
    verified_by   text,
    clock_s       real,
    unverified    boolean     not null default false,
    object_id     text,
    payload_id    bigint,
    payload_until date,
    sealed        boolean     not null default false,
    trace         text,
    primary key (route, event_id),
    check (repeats = any (array['refuse', 'flag']))
);
comment on table gateway.processed_events is
    'Verified events, claimed once per (route, event_id).';
comment on column gateway.processed_events.spooled is
    'Whether the event was acknowledged from the local spool, and claimed later.';
comment on column gateway.processed_events.reconciled is
    'Fetched from the provider''s API by reconcile: the body is what the API returned, and was not signed.';
comment on column gateway.processed_events.verified_by is
    'The reference of the secret that matched, never the secret.';
comment on column gateway.processed_events.clock_s is
    'Our clock minus the time that the sender signed.';
comment on column gateway.processed_events.unverified is
    'Accepted in development by a route with `enforce: false`, although its signature was wrong.';
comment on column gateway.processed_events.object_id is
    'The object of the event: data.object.id of Stripe, acme/shop#42 of GitHub.';
comment on column gateway.processed_events.payload_id is
    'Its row in gateway.payloads, which is gone once the payload retention has passed; null if it was erased.';
comment on column gateway.processed_events.sealed is
    'Whether digest and guard are keyed, and the payload sealed.';
comment on column gateway.processed_events.trace is
    'The traceparent of the request that brought it; null if nothing was traced.';
create unique index processed_events_guard on gateway.processed_events (route, guard) where guard is not null;
create index processed_events_newest on gateway.processed_events (received_at, route, event_id) include (type);
create index processed_events_account on gateway.processed_events (account, received_at) where account is not null;
create index processed_events_object on gateway.processed_events (object_id, received_at) where object_id is not null;

create sequence gateway.payload_ids;

create table gateway.payloads (
    id       bigint not null,
    until    date   not null,
    route    text   not null,
    event_id text   not null,
    headers  jsonb,
    body     bytea  not null,
    key_id   text,
    primary key (id, until)
) partition by range (until);
comment on table gateway.payloads is
    'Headers and bodies of events, in one table for each day from which they may be deleted.';
comment on column gateway.payloads.body is
    'The signed bytes.';
alter table gateway.payloads alter column body set storage main;
comment on column gateway.payloads.key_id is
    'The key under which body holds headers and body sealed. Null: as they came.';
create index payloads_key on gateway.payloads (key_id, id) where key_id is not null;

create table gateway.payloads_default partition of gateway.payloads default with (toast_tuple_target=8160);

create view gateway.events as
select e.route, e.event_id, e.provider, e.type, e.account, e.livemode, e.occurred_at, e.received_at, e.digest,
       e.repeats, e.guard, e.repeat_of, e.spooled, e.reconciled, e.verified_by, e.clock_s, e.unverified,
       e.object_id, e.payload_id, e.payload_until, e.sealed, p.headers, p.body, p.key_id, e.trace
from gateway.processed_events e
left join gateway.payloads p on p.id = e.payload_id and p.until = e.payload_until;
comment on view gateway.events is
    'Events with their headers and bodies, as far as these are kept.';

create table gateway.deliveries (
    id           bigint                  not null generated always as identity,
    route        text                    not null,
    event_id     text                    not null,
    handler      text                    not null,
    status       gateway.delivery_status not null default 'pending',
    attempts     integer                 not null default 0,
    runs         integer                 not null default 0,
    losses       integer                 not null default 0,
    due_at       timestamptz             not null default now(),
    lease_token  uuid,
    leased_at    timestamptz,
    leased_until timestamptz,
    error        text,
    created_at   timestamptz             not null default now(),
    finished_at  timestamptz,
    order_key    text,
    slot         integer,
    slot_token   uuid,
    not_before   timestamptz,
    cause        bigint,
    added        boolean,
    workers_lost integer                 not null default 0,
    conflicts    integer                 not null default 0,
    primary key (id),
    unique (route, event_id, handler),
    check ((status::text = 'running') = (lease_token is not null))
) with (fillfactor=70, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=10000);
comment on table gateway.deliveries is
    'One event for one handler: the unit of work, of retry, of dead letter and of replay.';
comment on column gateway.deliveries.losses is
    'How many runs in a row were lost by its own doing: its connection broke, or its worker was lost while it ran alone.';
comment on column gateway.deliveries.leased_until is
    'The lease is valid until then, and for as long as a worker''s heartbeats name its token.';
comment on column gateway.deliveries.order_key is
    'Deliveries of a handler with the same key run one at a time. One that waits for its turn is due at infinity.';
comment on column gateway.deliveries.slot is
    'Handlers with a concurrency: the place of a running delivery among those that run at once.';
comment on column gateway.deliveries.not_before is
    'A job that was published with a delay is not run sooner, even if it is the next one of its ordering key.';
comment on column gateway.deliveries.cause is
    'The cause of a dead letter (gateway.causes); null until the sweep has assigned it.';
comment on column gateway.deliveries.added is
    'Made by a bulk operation, for an event that had been claimed before.';
comment on column gateway.deliveries.workers_lost is
    'How many times in a row its worker was lost while it ran. From 2 on it runs alone.';
comment on column gateway.deliveries.conflicts is
    'How many runs in a row ended in a conflict: Postgres ended them in favour of others, or a statement was outdated.';
create index deliveries_due on gateway.deliveries (route, handler, due_at, id) where status::text = 'pending';
create index deliveries_suspect on gateway.deliveries (route, handler, due_at, id) where status::text = 'pending' and workers_lost >= 2;
create index deliveries_leased on gateway.deliveries (leased_until) where status::text = 'running';
create unique index deliveries_slot on gateway.deliveries (route, handler, slot) where slot is not null and status::text = 'running' and slot_token = lease_token;
create unique index deliveries_turn on gateway.deliveries (route, handler, order_key) where order_key is not null and (status::text = any (array['pending', 'running'])) and due_at < 'infinity'::timestamp with time zone;
create index deliveries_held on gateway.deliveries (route, handler, order_key, id) where order_key is not null and status::text = 'pending' and due_at = 'infinity'::timestamp with time zone;
create index deliveries_blocking on gateway.deliveries (route, handler, order_key) where order_key is not null and status::text = 'dead';
create index deliveries_dead on gateway.deliveries (finished_at, id) include (route, handler) where status::text = 'dead';
create index deliveries_dead_of on gateway.deliveries (route, handler, finished_at, id) where status::text = 'dead';
create index deliveries_cause on gateway.deliveries (cause, finished_at, id) where status::text = 'dead';
create index deliveries_late on gateway.deliveries (finished_at, id) where finished_at is not null and (added or (finished_at - created_at) > '01:00:00'::interval);

-- Ages count from the end of the last delivery, which most have within the hour. Dates are those of UTC.
-- Of a long retention only some days are used: there are never more than about fifty tables.
create function gateway.forget_on(at timestamptz, kept interval) returns date
language sql stable parallel safe
return case
    when kept > interval '180 days' then
        (date_trunc('month', (at + kept + interval '1 hour') at time zone 'UTC') + interval '1 month')::date
    when kept > interval '31 days' then
        (date_trunc('week', (at + kept + interval '1 hour') at time zone 'UTC') + interval '7 days')::date
    else ((at + kept + interval '25 hours') at time zone 'UTC')::date
end;
comment on function gateway.forget_on is
    'The day from which a row may be deleted: the next one, the next Monday (kept for 31 days or more), or the first of the next month (180).';

create table gateway.attempts (
    delivery_id bigint                  not null,
    number      integer                 not null,
    started_at  timestamptz             not null,
    finished_at timestamptz             not null,
    outcome     gateway.attempt_outcome not null,
    error       text,
    sealed      bytea,
    key_id      text,
    until       date                    not null default gateway.forget_on(now(), '35 days'::interval),
    primary key (delivery_id, number, until)
) partition by range (until);
comment on table gateway.attempts is
    'One run of a delivery and how it ended, in one table for each day from which they may be deleted.';
comment on column gateway.attempts.sealed is
    'The whole error, sealed; error then names only its class and place.';
create index attempts_key on gateway.attempts (key_id, delivery_id, number) where key_id is not null;

create table gateway.attempts_default partition of gateway.attempts default;

create table gateway.workers (
    id         uuid        not null,
    host       text        not null,
    pid        integer     not null,
    handlers   text[]      not null,
    started_at timestamptz not null default now(),
    seen_at    timestamptz not null default now(),
    version    text,
    held       uuid[]      not null default '{}'::uuid[],
    held_until timestamptz,
    isolated   boolean     not null default false,
    primary key (id)
);
comment on table gateway.workers is
    'Workers alive, with the handlers that they have, as "route handler".';
comment on column gateway.workers.version is
    'Of the gateway''s code.';
comment on column gateway.workers.held is
    'The tokens of the leases that the last heartbeat kept alive.';
comment on column gateway.workers.held_until is
    'Until when they are alive without another heartbeat. Null: the worker has sent none.';
comment on column gateway.workers.isolated is
    'A process that another worker has started, and that runs suspects only, one at a time.';

create table gateway.pauses (
    route   text        not null,
    handler text        not null,
    actor   text        not null,
    reason  text,
    since   timestamptz not null default now(),
    primary key (route, handler)
);
comment on table gateway.pauses is
    'Handlers that are not run for now; an empty handler: all of the route.';

create table gateway.effects (
    delivery_id bigint      not null,
    name        text        not null,
    status      text        not null default 'begun',
    token       uuid        not null,
    calls       integer     not null default 1,
    result      json,
    begun_at    timestamptz not null default now(),
    finished_at timestamptz,
    sealed      bytea,
    key_id      text,
    error       text,
    unknown_at  timestamptz,
    key         text,
    made_by     bigint,
    primary key (delivery_id, name),
    check (status = any (array['begun', 'unknown', 'done']))
);
comment on table gateway.effects is
    'Outside effects of deliveries: begun, unknown (a run went on without its outcome), or done.';
comment on column gateway.effects.sealed is
    'The result, sealed; result is null then.';
comment on column gateway.effects.error is
    'How the last call ended, by class and HTTP status: ReadTimeout, HTTPStatusError 500. Null: no error was seen, as of a killed worker.';
comment on column gateway.effects.unknown_at is
    'When a run went on without its outcome.';
comment on column gateway.effects.key is
    'The key of an effect that is once per key, with which its name ends; on an encrypted route a digest.';
comment on column gateway.effects.made_by is
    'The delivery of another event with the same key that made the call. Not done: that one has it, and its row says how it stands.';
create index effects_key on gateway.effects (key_id, delivery_id, name) where key_id is not null;
create index effects_unknown on gateway.effects (unknown_at, delivery_id, name) where status = 'unknown';
create index effects_made_by on gateway.effects (made_by) where made_by is not null;

create table gateway.once_keys (
    route       text        not null,
    handler     text        not null,
    key         text        not null,
    delivery_id bigint      not null,
    token       uuid        not null,
    finished_at timestamptz,
    primary key (route, handler, key)
);
comment on table gateway.once_keys is
    'Which delivery acts, if a handler acts once per key; of an effect that is once per key, which delivery has it.';
create index once_keys_delivery on gateway.once_keys (delivery_id);

create table gateway.handlers (
    route   text not null,
    handler text not null,
    on_dead text not null,
    primary key (route, handler),
    check (on_dead = any (array['pass', 'block']))
);
comment on table gateway.handlers is
    'Whether a dead delivery blocks its ordering key.';

create table gateway.places (
    route   text        not null,
    handler text        not null,
    place   integer     not null,
    free_at timestamptz not null default '-infinity'::timestamp with time zone,
    primary key (route, handler, place)
);
comment on table gateway.places is
    'Handlers with a rate: when each place in the period is free again.';

create function gateway.turn_lock(route text, handler text, key text) returns bigint
language sql immutable
return hashtextextended(route || ' ' || handler || ' ' || key, 20261116);
comment on function gateway.turn_lock is
    'The advisory lock of an ordering key.';

-- A dead delivery blocks the deliveries behind it, and none that was before it and is replayed.
--
-- A process that adds a delivery calls this after its commit, one that ends a delivery before its commit: one of the two,
-- which the lock puts in a row, sees both. A statement after the lock sees every commit before the lock was granted.
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
        ) then
            return null;
        end if;
        select d.id into next_id
        from gateway.deliveries d
        where d.route = of_route and d.handler = of_handler and d.order_key = of_key
          and d.status = 'pending' and d.due_at = 'infinity'
        order by d.id
        limit 1;
        if not found or exists (
            select from gateway.deliveries d
            where d.route = of_route and d.handler = of_handler and d.order_key = of_key
              and d.status = 'dead' and d.id < next_id
        ) and exists (
            select from gateway.handlers h
            where h.route = of_route and h.handler = of_handler and h.on_dead = 'block'
        ) then
            return null;
        end if;
        update gateway.deliveries d set due_at = greatest(clock_timestamp(), d.not_before)
        where d.id = next_id and d.status = 'pending' and d.due_at = 'infinity';
        if found then
            return next_id;
        end if;  -- it was discarded meanwhile: the one behind it is next
    end loop;
end
$$;
comment on function gateway.advance is
    'Makes the first waiting delivery of an ordering key due, unless another one of the key may run; returns its id.';

-- Leases for a handler with a concurrency or a rate: no more than it has slots and places for.
--
-- A lease that has no room for large bodies looks past them: they would keep small ones behind them from being leased.
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
    with small_ids as materialized (  -- as in lease_due: the small ones among the oldest
        select d.id
        from (
            select id, event_id
            from gateway.deliveries
            where route = of_route and handler = of_handler
              and status = 'pending' and workers_lost < 2 and due_at <= clock_timestamp()
            order by due_at, id
            limit 1000
        ) d
        cross join lateral (
            select payload_id, payload_until from gateway.processed_events
            where route = of_route and event_id = d.event_id
            limit 1
        ) e
        left join lateral (
            select octet_length(body) as bytes from gateway.payloads
            where id = e.payload_id and until = e.payload_until
            limit 1
        ) p on true
        where large_room <= 0 and not suspects and coalesce(p.bytes, 0) <= small_bytes
    ), due as materialized (  -- one of the branches, by a one-time filter: each has its own index
        select * from (
            select id, due_at, event_id
            from gateway.deliveries
            where large_room <= 0 and not suspects and id = any (array (select id from small_ids))
              and status || '' = 'pending' and workers_lost < 2 and due_at <= clock_timestamp()
            order by due_at, id
            limit least(room, concurrency)
            for update skip locked
        ) small
        union all
        select * from (
            select id, due_at, event_id
            from gateway.deliveries
            where large_room > 0 and not suspects and route = of_route and handler = of_handler
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

-- A run is settled in one of two forms that share this function. In the handler's transaction (settle_done) the next
-- delivery of an ordering key cannot be advanced: the snapshot may be older than that delivery. The worker does it after
-- the commit, and the sweep does it for a worker that was killed in between.
--
-- It raises an error if the fence is lost, so that it can share a round trip with the commit: a statement that merely finds
-- no row would let the commit happen.
create function gateway.end_run(
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
comment on function gateway.end_run is
    'Ends a run under its fence; raises GW001 and changes nothing if the lease was lost.';

create function gateway.settle(
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

-- A handler that ends its own transaction commits its effect without the completion of its delivery. If the run could
-- still be completed, or retried, the effect would be applied again. So the worker sets gateway.transaction to a
-- random value when it begins the transaction of a run (SET LOCAL, or set_config with is_local). Postgres forgets the
-- value when the transaction ends. settle_done demands it, whichever driver has begun the transaction.
--
-- It has few arguments because it is parsed anew for each run.
create function gateway.settle_done(delivery_id bigint, token uuid, proof text) returns void
language plpgsql
as $$
begin
    if coalesce(proof, '') = '' or current_setting('gateway.transaction', true) is distinct from proof then
        raise exception 'this is not the transaction in which delivery % began to run', delivery_id
            using errcode = 'GW002';
    end if;
    perform gateway.end_run(delivery_id, token, 'done', 'done', 1, '0', null, null, null, null, null);
end
$$;
comment on function gateway.settle_done is
    'Completes a run in its handler''s transaction, at any isolation level; raises GW002 if gateway.transaction is not the proof. The caller advances the ordering key after the commit.';

-- State of a session that RESET ALL leaves, and that no other command undoes without harm: DEALLOCATE ALL would also
-- drop the statements that the driver, or a pooler, has prepared.
create function gateway.forget_session() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    prepared text;
begin
    for prepared in select name from pg_catalog.pg_prepared_statements where from_sql loop
        execute format('deallocate %I', prepared);
    end loop;
    perform setseed(hashtext(gen_random_uuid()::text) / 2147483648.0);
end
$$;
comment on function gateway.forget_session is
    'Undoes PREPARE and setseed in a session that the SQL of a handler has used.';

create table gateway.retention (
    route        text     not null,
    key          interval not null,
    payload      interval not null,
    longer_until date,
    primary key (route)
);
comment on table gateway.retention is
    'How long each route keeps its keys and payloads, as it was last configured.';

create view gateway.partitions as
select split_part(c.relname, '_', 1) as parent, c.relname::text as name,
       to_date(right(c.relname, 8), 'YYYYMMDD') as day, c.relispartition as is_attached
from pg_catalog.pg_class c
where c.relnamespace = 'gateway'::regnamespace and c.relkind = 'r'
  and c.relname ~ '^(payloads|attempts)_[0-9]{8}$';
comment on view gateway.partitions is
    'The tables of payloads and attempts, and from which day each may be dropped.';
comment on column gateway.partitions.is_attached is
    'False: its rows are in no query any more, and it is about to be dropped.';

create function gateway.next_partition(of_parent text, from_day date) returns date
language sql stable
return coalesce((select min(day) from gateway.partitions where parent = of_parent and day >= from_day and is_attached),
                from_day);
comment on function gateway.next_partition is
    'The first day from this one on that has a table; if none has, the day itself.';

-- Callers of these functions own no table: the functions do what is safe for every caller, and no more. They do not wait
-- for long, since whatever comes after them would have to wait, too.
create function gateway.make_partitions() returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms'
as $$
declare
    missing record;
    made    integer := 0;
begin
    perform pg_advisory_xact_lock(482671228019);  -- "parts" in ASCII: one at a time
    for missing in
        select distinct kept.parent, d.day, kept.parent || to_char(d.day, '"_"YYYYMMDD') as name
        from (
            select 'payloads' as parent, payload as age from gateway.retention
            union select 'attempts', key from gateway.retention
            union values ('payloads', interval '14 days'), ('attempts', interval '35 days')
        ) kept
        cross join generate_series(0, 8) as n
        cross join lateral (select gateway.forget_on(now() + make_interval(days => n), kept.age) as day) d
        where to_regclass(format('gateway.%I', kept.parent || to_char(d.day, '"_"YYYYMMDD'))) is null
          and not case kept.parent  -- of whose day the next table is as good
              when 'payloads' then exists (select from gateway.payloads_default where until = d.day)
              else exists (select from gateway.attempts_default where until = d.day) end
        order by 1, 2
    loop
        -- Made apart and then attached: making it in its place would lock out all who claim.
        execute format('create table gateway.%I (like gateway.%I including all)', missing.name, missing.parent);
        if missing.parent = 'payloads' then
            execute format('alter table gateway.%I set (toast_tuple_target = 8160)', missing.name);
        end if;
        execute format('alter table gateway.%I attach partition gateway.%I for values from (%L) to (%L)',
                       missing.parent, missing.name, missing.day, missing.day + 1);
        made := made + 1;
    end loop;
    return made;
end
$$;
comment on function gateway.make_partitions is
    'Makes the tables for the payloads and attempts of the next eight days.';
revoke execute on function gateway.make_partitions() from public;

-- In two steps, each a commit: detaching a table locks out all claims, and need not reach the disk; dropping it waits for
-- the disk, and locks out nothing any more.
create function gateway.detach_partition(of_parent text, of_day date) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms'
as $$
declare
    found_name text;
begin
    select name into found_name
    from gateway.partitions
    where parent = of_parent and day = of_day and is_attached
      and day <= (now() at time zone 'UTC')::date;
    if not found then
        return false;
    end if;
    execute format('alter table gateway.%I detach partition gateway.%I', of_parent, found_name);
    return true;
end
$$;
comment on function gateway.detach_partition is
    'Takes out the payloads or attempts of a day that has come, and never of one that has not.';
revoke execute on function gateway.detach_partition(of_parent text, of_day date) from public;

create function gateway.drop_partition(of_parent text, of_day date) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '200ms'
as $$
declare
    found_name text;
begin
    select name into found_name
    from gateway.partitions
    where parent = of_parent and day = of_day and not is_attached;
    if not found then
        return false;
    end if;
    execute format('drop table gateway.%I', found_name);
    return true;
end
$$;
comment on function gateway.drop_partition is
    'Drops a table that was taken out.';
revoke execute on function gateway.drop_partition(of_parent text, of_day date) from public;

-- plpgsql, because as a part of a statement that counts many the condition looked so costly that Postgres read all of a
-- table in parallel.
create function gateway.has_payload(its_id bigint, its_until date) returns boolean
language plpgsql stable
as $$
begin
    return exists (select from gateway.payloads p where p.id = its_id and p.until = its_until);
end
$$;
comment on function gateway.has_payload is
    'Whether a payload is still kept.';

-- Separate statements, each of which sees every commit before the lock on the event: its payload may just have been filed
-- under a later day.
create function gateway.hold_payload(of_route text, of_event text) returns boolean
language plpgsql
set enable_seqscan = off
as $$
declare
    its_id    bigint;
    its_until date;
    later     date;
begin
    select e.payload_id, e.payload_until into its_id, its_until
    from gateway.processed_events e
    where e.route = of_route and e.event_id = of_event and e.payload_id is not null
    for no key update;
    if not found or not exists (select from gateway.payloads p where p.id = its_id and p.until = its_until) then
        return false;
    end if;
    if its_until <= (now() at time zone 'UTC')::date + 1 then
        later := gateway.next_partition('payloads', gateway.forget_on(now(), interval '7 days'));
        update gateway.payloads p set until = later where p.id = its_id and p.until = its_until;
        update gateway.processed_events e set payload_until = later
        where e.route = of_route and e.event_id = of_event;
    end if;
    return true;
end
$$;
comment on function gateway.hold_payload is
    'Whether an event still has its payload, for a caller that has it run again: a payload whose day is near moves to a later day.';

-- What stands in quotes, and words with a digit (numbers, ids), differ between errors of one cause; a status, as in HTTP
-- 503, does not. Only if there may be a status is it looked for behind each word, which takes longer than all the rest.
-- Ids of senders are random: of those of 14 characters every twelfth has no digit. A word after an underscore that is
-- long, and changes from small letters to capitals, is an id, too.
create function gateway.common_error(error text) returns text
language sql immutable parallel safe
return regexp_replace(
    regexp_replace(
        error,
        '"[^"]*(?:"|$)|`[^`]*(?:`|$)|(?<!\w)''[^'']*(?:''(?!\w)|$)|[[:cntrl:]]+|'
        || '[[:alnum:]]+_(?=[[:alnum:]]{10})[[:alnum:]]*[[:lower:]][[:upper:]][[:alnum:]_-]*|'
        || case when error like '%HTTP %' then '(?<!HTTP |[[:alnum:]_-])' else '' end
        || '[[:alnum:]_-]*\d[[:alnum:]_-]*',
        '…', 'g'),
    '…(?:\W{0,2}…)+', '…', 'g');

create table gateway.causes (
    id      bigint not null generated always as identity,
    route   text   not null,
    handler text   not null,
    common  text   not null,
    error   text,
    primary key (id),
    unique (route, handler, common)
);
comment on table gateway.causes is
    'Causes of dead letters: the text that errors of one handler have in common.';

create table gateway.bulk_orders (
    id              bigint      not null generated always as identity,
    action          text        not null,
    filter          jsonb       not null,
    actor           text        not null,
    reason          text,
    rate            integer,
    began_at        timestamptz not null,
    total           bigint      not null,
    moved           bigint      not null default 0,
    skipped         bigint      not null default 0,
    mark_at         timestamptz not null,
    mark_id         bigint      not null default 0,
    mark_route      text        not null default '',
    mark_event_id   text        not null default '',
    status          text        not null default 'running',
    resumed         integer     not null default 0,
    stepped_at      timestamptz not null default now(),
    finished_at     timestamptz,
    effects         text        not null default 'keep',
    effects_kept    bigint      not null default 0,
    effects_unknown bigint      not null default 0,
    primary key (id),
    check (action = any (array['replay', 'discard', 'deliver', 'retry_effects', 'confirm_effects'])),
    check (effects = any (array['keep', 'retry'])),
    check (rate > 0),
    check (status = any (array['running', 'stopped', 'done']))
);
comment on table gateway.bulk_orders is
    'Replays, discards and deliveries of everything that matches a filter, and how far each has come.';
comment on column gateway.bulk_orders.effects is
    'Of a replay: whether effects of unknown outcome are made again.';
comment on column gateway.bulk_orders.effects_kept is
    'Effects of the replayed deliveries that were done, and are not made again.';
comment on column gateway.bulk_orders.effects_unknown is
    'Effects of the replayed deliveries whose outcome was unknown.';

create table gateway.audit (
    id          bigint      not null generated always as identity,
    at          timestamptz not null default now(),
    actor       text        not null,
    action      text        not null,
    delivery_id bigint,
    route       text,
    event_id    text,
    reason      text,
    handler     text,
    order_id    bigint,
    effect      text,
    primary key (id)
);
comment on table gateway.audit is
    'What people and retention did to deliveries, and why.';
comment on column gateway.audit.handler is
    'The handler that was paused or resumed.';
comment on column gateway.audit.order_id is
    'The bulk operation of which this was a part.';
comment on column gateway.audit.effect is
    'The effect that was retried or confirmed.';
create index audit_delivery on gateway.audit (delivery_id);
create index audit_at on gateway.audit (at);
create index audit_erased on gateway.audit (route, event_id) where action = 'erase';

create function gateway.erased(key text) returns text
language sql immutable
return 'erased:' || encode(sha256(convert_to(key, 'UTF8')), 'hex');
comment on function gateway.erased is
    'A digest in place of an erased key: it can be compared with, and not read.';

create function gateway.holds_details(of_delivery bigint, error text, order_key text) returns boolean
language sql stable
return error is not null or order_key is not null
    or exists (select from gateway.attempts a where a.delivery_id = of_delivery and a.error is not null)
    or exists (select from gateway.effects f where f.delivery_id = of_delivery and f.name not like 'erased:%')
    or exists (select from gateway.once_keys o where o.delivery_id = of_delivery and o.key not like 'erased:%');
comment on function gateway.holds_details is
    'Whether a delivery still has details that an erasure removes.';

create table gateway.rejected (
    id          bigint      not null generated always as identity,
    route       text        not null,
    at          timestamptz not null,
    code        text        not null,
    cause       text        not null,
    detail      text        not null,
    shadow      boolean     not null default false,
    method      text        not null,
    path        text        not null,
    address     text,
    sender      text        not null,
    headers     jsonb,
    body        bytea,
    body_bytes  bigint,
    digest      bytea,
    key_id      text,
    size        integer     not null,
    released_at timestamptz,
    released_as text[],
    verified_by text,
    copies      integer     not null default 1,
    primary key (id)
);
comment on table gateway.rejected is
    'Rejected requests, a few of each route and cause, and rejected items of accepted batches.';
comment on column gateway.rejected.headers is
    'Without credentials. Null once released.';
comment on column gateway.rejected.body is
    'Null if it was too large to be kept, never came, or was released.';
alter table gateway.rejected alter column body set storage external;
comment on column gateway.rejected.verified_by is
    'The reference of the secret under which it was verified: an item of an accepted batch, or a duplicate. Null: not verified.';
comment on column gateway.rejected.copies is
    'How many identical requests the row stands for: duplicates of a sender without event ids.';
create index rejected_route on gateway.rejected (route, id);
create index rejected_at on gateway.rejected (at);
create unique index rejected_verified on gateway.rejected (route, digest, (code = 'DUPLICATE')) where verified_by is not null and released_at is null;

create table gateway.refusals (
    route      text        not null,
    event_id   text        not null,
    digest     bytea       not null,
    refused_at timestamptz not null default now(),
    primary key (route, event_id)
);
comment on table gateway.refusals is
    'Delivery ids that were refused as REPEATED_BODY: for reconcile they have been seen.';
create index refusals_digest on gateway.refusals (route, digest);
create index refusals_at on gateway.refusals (refused_at);

create table gateway.secret_uses (
    route         text        not null,
    secret        text        not null,
    first_used_at timestamptz not null,
    last_used_at  timestamptz not null,
    uses          bigint      not null,
    primary key (route, secret)
) with (fillfactor=60);
comment on table gateway.secret_uses is
    'When each secret of a route last verified a request: whether an old one can go.';
comment on column gateway.secret_uses.secret is
    'Its reference, never the secret.';

create table gateway.reloads (
    host    text        not null,
    pid     integer     not null,
    at      timestamptz not null default now(),
    outcome text        not null,
    error   text,
    primary key (host, pid),
    check (outcome = any (array['done', 'refused']))
);
comment on table gateway.reloads is
    'The last reload (SIGHUP) of each serve process.';

create table gateway.reconciliations (
    id            bigint      not null generated always as identity,
    route         text        not null,
    actor         text        not null,
    since         timestamptz not null,
    until         timestamptz not null,
    note          text,
    dry_run       boolean     not null,
    status        text        not null default 'running',
    taken         boolean     not null default false,
    phase         text        not null default 'listing',
    cursor        text,
    listed        bigint      not null default 0,
    missing       bigint      not null default 0,
    recovered     bigint      not null default 0,
    unrecoverable bigint      not null default 0,
    error         text,
    started_at    timestamptz not null default now(),
    stepped_at    timestamptz not null default now(),
    finished_at   timestamptz,
    primary key (id),
    check (phase = any (array['listing', 'recovering', 'waiting'])),
    check (status = any (array['running', 'done', 'failed', 'stopped']))
);
comment on table gateway.reconciliations is
    'Runs that ask a provider for the events that it sent, and how far each has come.';
create unique index reconciliations_running on gateway.reconciliations (route) where status = 'running';
create index reconciliations_route on gateway.reconciliations (route, id);

create table gateway.gaps (
    route       text        not null,
    event_id    text        not null,
    run_id      bigint      not null,
    type        text        not null,
    handle      text        not null,
    handled_at  timestamptz not null,
    occurred_at timestamptz not null,
    is_first    boolean     not null,
    status      text        not null default 'missing',
    asks        integer     not null default 0,
    asked_at    timestamptz,
    asked_run   bigint,
    recorded    text,
    reason      text,
    found_at    timestamptz not null default now(),
    closed_at   timestamptz,
    primary key (route, event_id),
    check (status = any (array['missing', 'asked', 'recovered', 'unrecoverable']))
);
comment on table gateway.gaps is
    'Events that a provider had sent and the ledger had not seen, and what became of them.';
create index gaps_run on gateway.gaps (run_id, status, occurred_at, event_id);
create index gaps_open on gateway.gaps (route) where status = any (array['missing', 'asked']);
create index gaps_closed on gateway.gaps (closed_at) where closed_at is not null;

create table gateway.tallies (
    minute  timestamptz not null,
    route   text        not null,
    handler text        not null,
    outcome text        not null,
    n       bigint      not null,
    times   integer[]   not null default '{}'::integer[],
    primary key (minute, route, handler, outcome)
) with (fillfactor=60);
comment on table gateway.tallies is
    'Counts per minute, route or handler, and outcome; kept for 8 days.';

create table gateway.tally_hours (
    hour    timestamptz not null,
    route   text        not null,
    handler text        not null,
    outcome text        not null,
    n       bigint      not null,
    times   integer[]   not null default '{}'::integer[],
    primary key (hour, route, handler, outcome)
) with (fillfactor=60);
comment on table gateway.tally_hours is
    'Counts per hour, route or handler, and outcome; kept for 90 days.';

create table gateway.totals (
    route   text        not null,
    handler text        not null,
    outcome text        not null,
    n       bigint      not null,
    last_at timestamptz not null,
    primary key (route, handler, outcome)
) with (fillfactor=60);
comment on table gateway.totals is
    'Counts since counting began, and the time of the last one.';

create table gateway.alerts (
    kind         text        not null,
    route        text        not null,
    handler      text        not null,
    raised_at    timestamptz not null,
    cleared_at   timestamptz,
    round        integer     not null default 0,
    told_at      timestamptz,
    told_through timestamptz,
    paused       boolean     not null default false,
    primary key (kind, route, handler),
    check (kind = any (array['dead', 'backlog', 'effects']))
);
comment on table gateway.alerts is
    'Conditions that need attention, or did: one row per handler and kind, so that each is sent once.';

create table gateway.alert_messages (
    kind        text        not null,
    route       text        not null,
    handler     text        not null,
    destination text        not null,
    id          text        not null,
    message     json        not null,
    status      text        not null default 'waiting',
    attempts    integer     not null default 0,
    next_at     timestamptz not null,
    error       text,
    sent_at     timestamptz,
    primary key (kind, route, handler, destination),
    check (destination = any (array['webhook', 'slack'])),
    check (status = any (array['waiting', 'sent', 'failed']))
);
comment on table gateway.alert_messages is
    'The last message of each alert to each destination, and whether it was delivered.';
create index alert_messages_waiting on gateway.alert_messages (next_at) where status = 'waiting';

create table gateway.ended_sessions (
    id    text        not null,
    until timestamptz not null,
    primary key (id)
);
comment on table gateway.ended_sessions is
    'Sessions of the console that a log-out has ended, until they would have run out.';

create table gateway.names (
    kind     text        not null,
    name     text        not null,
    identity text        not null,
    seen_at  timestamptz not null default now(),
    primary key (kind, name),
    check (kind = any (array['route', 'handler']))
);
comment on table gateway.names is
    'Names of renamed routes and handlers (formerly). One that was never renamed is its own identity, and has no row.';
comment on column gateway.names.identity is
    'The first name, which the columns route and handler of all tables hold.';
comment on column gateway.names.seen_at is
    'When a process that started last made it the current name of its identity, which people see.';
