-- What people can do while it runs: pause handlers, delay jobs, and say to what an order of theirs was.
-- oldest code: 4

-- Handlers that are not to be run for now; an empty handler means all of the route.
create table gateway.pauses (
    route        text        not null,
    handler      text        not null,
    actor        text        not null,
    reason       text,
    since        timestamptz not null default now(),
    primary key (route, handler)
);
comment on table gateway.pauses is 'Handlers that are not run for now; an empty handler: all of the route.';

alter table gateway.deliveries add column not_before timestamptz;
comment on column gateway.deliveries.not_before is
    'A job that was published with a delay is not run sooner, whoever''s turn it is.';

alter table gateway.audit add column handler text;
comment on column gateway.audit.handler is 'What a pause was of.';

-- For erasing, and finding, what belongs to one account.
create index processed_events_account on gateway.processed_events (account, received_at)
    where account is not null;

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
        update gateway.deliveries d set due_at = greatest(clock_timestamp(), d.not_before)
        where d.id = next_id and d.status = 'pending' and d.due_at = 'infinity';
        if found then
            return next_id;
        end if;  -- discarded this very moment: the one behind it is next
    end loop;
end
$$;
