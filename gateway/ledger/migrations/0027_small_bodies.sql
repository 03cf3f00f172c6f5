-- A lease that has no room for large bodies looks past them: they would keep small ones behind them from being leased.
-- oldest code: 26

create or replace function gateway.lease_limited(
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
