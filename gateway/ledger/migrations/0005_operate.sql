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

-- Orders for everything that matches: carried out step by step, and gone on with after a crash.
create table gateway.bulk_orders (
    id            bigint generated always as identity primary key,
    action        text        not null check (action in ('replay', 'discard', 'deliver')),
    -- What was asked for; null or missing: no matter which.
    filter        jsonb       not null,
    actor         text        not null,
    reason        text,
    -- Deliveries a second; null: as fast as it goes.
    rate          integer     check (rate > 0),
    -- What became dead, or was received, later than this is not of this order.
    began_at      timestamptz not null,
    -- How many matched when it began.
    total         bigint      not null,
    moved         bigint      not null default 0,
    -- Those that have no payload any more.
    skipped       bigint      not null default 0,
    -- How far it has come: finished_at and id of a dead delivery, or received_at, route and id of an event.
    mark_at       timestamptz not null,
    mark_id       bigint      not null default 0,
    mark_route    text        not null default '',
    mark_event_id text        not null default '',
    status        text        not null default 'running' check (status in ('running', 'stopped', 'done')),
    -- How often it was resumed: whoever was at it before the last time makes no more steps.
    resumed       integer     not null default 0,
    stepped_at    timestamptz not null default now(),
    finished_at   timestamptz
);
comment on table gateway.bulk_orders is 'Replays, discards and deliveries of everything that matches a filter, and how far each has come.';

alter table gateway.audit add column order_id bigint;
comment on column gateway.audit.order_id is 'The bulk order of which this was a part.';

-- For erasing, and finding, what belongs to one account.
create index processed_events_account on gateway.processed_events (account, received_at)
    where account is not null;
create index audit_at on gateway.audit (at);
create index audit_erased on gateway.audit (route, event_id) where action = 'erase';

create function gateway.erased(key text) returns text
language sql immutable
return 'erased:' || encode(sha256(convert_to(key, 'UTF8')), 'hex');
comment on function gateway.erased is
    'What is left of a key that an erasure took: it can be compared with, and not read.';

create function gateway.holds_details(of_delivery bigint, error text, order_key text) returns boolean
language sql stable
return error is not null or order_key is not null
    or exists (select from gateway.attempts a where a.delivery_id = of_delivery and a.error is not null)
    or exists (select from gateway.effects f where f.delivery_id = of_delivery and f.name not like 'erased:%')
    or exists (select from gateway.once_keys o where o.delivery_id = of_delivery and o.key not like 'erased:%');
comment on function gateway.holds_details is 'Whether there is something left of a delivery for an erasure to take.';

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
