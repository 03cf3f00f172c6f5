-- What is large goes by the day: payloads and attempts are filed under the day on which they may be forgotten,
-- and forgetting a day is dropping its table. What dedup needs stays apart, and small.
-- oldest code: 17

-- How long each route keeps what it has, as the configuration says that a worker, or `gateway migrate`, was
-- started with. In the database, so that a claim and a settlement need not be told.
create table gateway.retention (
    route        text        primary key,
    key          interval    not null,
    payload      interval    not null,
    -- Until this day there may be payloads that were filed when they were kept for a shorter time.
    longer_until date
);
comment on table gateway.retention is 'How long each route keeps its keys and payloads, as it was last configured.';

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
    'The day from which it may be forgotten: the next one, the next Monday (kept for 31 days or more), or the first of the next month (180).';

create sequence gateway.payload_ids as bigint;

create table gateway.payloads (
    id           bigint      not null,
    until        date        not null,
    route        text        not null,
    event_id     text        not null,
    headers      jsonb,
    body         bytea       not null,
    key_id       text,
    primary key (id, until)
) partition by range (until);
comment on table gateway.payloads is 'Headers and bodies of events, in one table for each day from which they may be forgotten.';
comment on column gateway.payloads.body is 'The signed bytes.';
comment on column gateway.payloads.key_id is
    'The key under which body holds headers and body sealed. Null: as they came.';
-- Bodies of 3 KB stay in the row, uncompressed work included: pglz halves the rate of inserts.
alter table gateway.payloads alter column body set storage main;
create index payloads_key on gateway.payloads (key_id, id) where key_id is not null;
-- For a day that nobody has made a table for: a claim never fails for want of one.
create table gateway.payloads_default partition of gateway.payloads default with (toast_tuple_target = 8160);

alter table gateway.processed_events
    add column payload_id bigint,
    add column payload_until date,
    add column sealed boolean not null default false;
comment on column gateway.processed_events.payload_id is
    'Its row in gateway.payloads, which is gone once the payload retention has passed; null where it was erased.';
comment on column gateway.processed_events.sealed is 'Whether digest and guard are keyed, and the payload sealed.';

-- What is there already was filed under no day: it is forgotten row by row, as it always was, long before.
update gateway.processed_events
set sealed = key_id is not null,
    payload_id = case when body is not null then nextval('gateway.payload_ids') end,
    payload_until = case when body is not null then gateway.forget_on(now(), interval '10 years') end;
insert into gateway.payloads (id, until, route, event_id, headers, body, key_id)
select payload_id, payload_until, route, event_id, headers, body, nullif(key_id, '')
from gateway.processed_events
where payload_id is not null
order by payload_id;
drop index gateway.processed_events_key;
alter table gateway.processed_events drop column headers, drop column body, drop column key_id;
alter table gateway.processed_events reset (toast_tuple_target);
cluster gateway.processed_events using processed_events_pkey;  -- written anew, without the bytes
alter table gateway.processed_events set without cluster;

create view gateway.events as
select e.*, p.headers, p.body, p.key_id
from gateway.processed_events e
left join gateway.payloads p on p.id = e.payload_id and p.until = e.payload_until;
comment on view gateway.events is 'Events with their headers and bodies, as far as these are kept.';

alter table gateway.attempts rename to attempts_before;
alter index gateway.attempts_pkey rename to attempts_before_pkey;
alter index gateway.attempts_key rename to attempts_before_key;
create table gateway.attempts (
    delivery_id  bigint      not null,
    number       integer     not null,
    started_at   timestamptz not null,
    finished_at  timestamptz not null,
    outcome      gateway.attempt_outcome not null,
    error        text,
    sealed       bytea,
    key_id       text,
    until        date        not null default gateway.forget_on(now(), interval '35 days'),
    primary key (delivery_id, number, until)
) partition by range (until);
comment on table gateway.attempts is 'One run of a delivery and how it ended, in one table for each day from which they may be forgotten.';
comment on column gateway.attempts.sealed is
    'The whole error, sealed; error then names only its class and place.';
create index attempts_key on gateway.attempts (key_id, delivery_id, number) where key_id is not null;
create table gateway.attempts_default partition of gateway.attempts default;
insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome, error, sealed, key_id, until)
select delivery_id, number, started_at, finished_at, outcome, error, sealed, key_id,
       gateway.forget_on(now(), interval '10 years')
from gateway.attempts_before;
create or replace function gateway.holds_details(of_delivery bigint, error text, order_key text) returns boolean
language sql stable
return error is not null or order_key is not null
    or exists (select from gateway.attempts a where a.delivery_id = of_delivery and a.error is not null)
    or exists (select from gateway.effects f where f.delivery_id = of_delivery and f.name not like 'erased:%')
    or exists (select from gateway.once_keys o where o.delivery_id = of_delivery and o.key not like 'erased:%');
drop table gateway.attempts_before;

-- Deliveries that ended longer after their event came than most do: for their sake a payload or an attempt may
-- be wanted on its day. (What is not finished yet is found by its status.)
alter table gateway.deliveries add column added boolean;
comment on column gateway.deliveries.added is 'Made by an order for an event that was there already.';
create index deliveries_late on gateway.deliveries (finished_at, id)
    where finished_at is not null and (added or finished_at - created_at > interval '1 hour');

create view gateway.partitions as
select split_part(c.relname, '_', 1) as parent, c.relname::text as name,
       to_date(right(c.relname, 8), 'YYYYMMDD') as day, c.relispartition as is_attached
from pg_catalog.pg_class c
where c.relnamespace = 'gateway'::regnamespace and c.relkind = 'r'
  and c.relname ~ '^(payloads|attempts)_[0-9]{8}$';
comment on view gateway.partitions is 'The tables of payloads and attempts, and from which day each may be dropped.';
comment on column gateway.partitions.is_attached is 'False: what is in it is forgotten already, and the table about to be dropped.';

create function gateway.next_partition(of_parent text, from_day date) returns date
language sql stable
return coalesce((select min(day) from gateway.partitions where parent = of_parent and day >= from_day and is_attached),
                from_day);
comment on function gateway.next_partition is 'The first day from this one on that has a table; where none has, the day itself.';

-- Whoever runs these owns no table: they do what is safe for anybody, and no more. They do not wait for long, since
-- whoever comes after them would have to wait, too.
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
comment on function gateway.make_partitions is 'Makes the tables that payloads and attempts of the next eight days will be filed in.';

-- In two steps, each a commit: taking a table out locks out all who claim, and need not reach the disk; dropping it
-- has to wait for that, and locks out nobody any more.
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
    'Forgets the payloads or attempts of a day that has come, and never of one that has not.';

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
comment on function gateway.drop_partition is 'Drops the table of a day that is forgotten.';
revoke execute on function gateway.make_partitions, gateway.detach_partition, gateway.drop_partition from public;

-- As a part of a statement that counts many, it made that look so costly that all of a table was read in parallel.
create function gateway.has_payload(its_id bigint, its_until date) returns boolean
language plpgsql stable
as $$
begin
    return exists (select from gateway.payloads p where p.id = its_id and p.until = its_until);
end
$$;
comment on function gateway.has_payload is 'Whether a payload is still kept.';

-- Statements of its own, each of which sees what was committed before the event was held: a payload may just have
-- been filed under a later day.
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
    'Whether an event still has its payload, which then stays: for who has it run again. Nothing is forgotten under his hands.';

drop function gateway.settle_sealed;
drop function gateway.settle(bigint, uuid, text, text, integer, interval, text, text, integer);
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
    its_handler text;
    its_key     text;
    kept        interval;
    ended_at    timestamptz;
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
    where d.id = delivery_id and d.lease_token = token  -- which only a running one has
    returning d.runs, d.leased_at, d.route, d.handler, d.order_key
    into run, began_at, its_route, its_handler, its_key;
    if not found then
        raise exception 'delivery % belongs to another run now', delivery_id using errcode = 'GW001';
    end if;

    select r.key into kept from gateway.retention r where r.route = its_route;
    insert into gateway.attempts
        (delivery_id, number, started_at, finished_at, outcome, error, sealed, key_id, until)
    values (delivery_id, run, began_at, ended_at, result, coalesce(detail, reason), sealed, key_id,
            gateway.forget_on(ended_at, coalesce(kept, interval '35 days')));
    if its_key is not null and new_status <> 'pending' then
        perform gateway.advance(its_route, its_handler, its_key);
    end if;
    return new_status;
end
$$;
comment on function gateway.settle is
    'Ends a run under its fence; raises GW001 and changes nothing where the lease was lost.';

create or replace function gateway.settle_done(delivery_id bigint, token uuid) returns void
language plpgsql
as $$
begin
    perform gateway.settle(delivery_id, token, 'done', 'done', 1, '0', null, null, null, null, null);
end
$$;

select gateway.make_partitions();
