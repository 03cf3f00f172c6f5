-- A dead delivery blocks what is behind it, and not what was before it and is replayed.
-- oldest code: 4

create or replace function gateway.advance(of_route text, of_handler text, of_key text) returns bigint
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
        end if;  -- discarded this very moment: the one behind it is next
    end loop;
end
$$;
