-- The ledger: events claimed once, their deliveries, the attempts, and who did what.

create table gateway.processed_events (
    route        text        not null,
    event_id     text        not null,
    provider     text        not null,
    type         text        not null,
    account      text,
    livemode     boolean,
    occurred_at  timestamptz,
    received_at  timestamptz not null,
    digest       bytea       not null,
    headers      jsonb,
    body         bytea,
    -- What the route's policy says of these bytes under a fresh id; null where the sender signs a time.
    replay       text        check (replay in ('refuse', 'flag')),
    -- The digest, held by the first event that brought these bytes; null in all others.
    guard        bytea,
    -- The event that brought the same bytes first, where the policy was to flag.
    replay_of    text,
    primary key (route, event_id)
);
comment on table gateway.processed_events is 'Verified events, claimed once per (route, event_id).';
comment on column gateway.processed_events.body is 'The signed bytes; null once the payload retention has passed.';

-- Bodies of 3 KB stay in the row, uncompressed work included: pglz halves the rate of inserts.
alter table gateway.processed_events alter column body set storage main;
alter table gateway.processed_events set (toast_tuple_target = 8160);

create unique index processed_events_guard on gateway.processed_events (route, guard) where guard is not null;
create index processed_events_received on gateway.processed_events (received_at, route, event_id);

create table gateway.deliveries (
    id           bigint generated always as identity primary key,
    route        text        not null,
    event_id     text        not null,
    handler      text        not null,
    status       text        not null default 'pending'
                 check (status in ('pending', 'running', 'done', 'dead', 'discarded')),
    -- Burned in this round of attempts; a replay starts a new round.
    attempts     integer     not null default 0,
    -- Every run ever, the number of its row in attempts.
    runs         integer     not null default 0,
    -- Runs lost in a row, through no decision of the handler.
    losses       integer     not null default 0,
    due_at       timestamptz not null default now(),
    lease_token  uuid,
    leased_at    timestamptz,
    leased_until timestamptz,
    error        text,
    created_at   timestamptz not null default now(),
    finished_at  timestamptz,
    unique (route, event_id, handler),
    check ((status = 'running') = (lease_token is not null))
);
comment on table gateway.deliveries is 'One event for one handler: the unit of work, of retry, of dead letter and of replay.';

create index deliveries_due on gateway.deliveries (route, handler, due_at, id) where status = 'pending';
create index deliveries_leased on gateway.deliveries (leased_until) where status = 'running';
create index deliveries_dead on gateway.deliveries (finished_at, id) where status = 'dead';

-- Rows are updated twice in their first second: leave room in the page, and vacuum early.
alter table gateway.deliveries set (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02,
                                    autovacuum_vacuum_threshold = 10000);

create table gateway.attempts (
    delivery_id  bigint      not null,
    number       integer     not null,
    started_at   timestamptz not null,
    finished_at  timestamptz not null,
    outcome      text        not null
                 check (outcome in ('done', 'retry', 'dead', 'deferred', 'lost', 'released')),
    error        text,
    primary key (delivery_id, number)
);
comment on table gateway.attempts is 'One run of a delivery and how it ended.';

create table gateway.workers (
    id           uuid        primary key,
    host         text        not null,
    pid          integer     not null,
    handlers     text[]      not null,
    started_at   timestamptz not null default now(),
    seen_at      timestamptz not null default now()
);
comment on table gateway.workers is 'Workers alive, with the handlers that they have, as "route handler".';

create table gateway.audit (
    id           bigint generated always as identity primary key,
    at           timestamptz not null default now(),
    actor        text        not null,
    action       text        not null,
    delivery_id  bigint,
    route        text,
    event_id     text,
    reason       text
);
comment on table gateway.audit is 'What people and retention did to deliveries, and why.';
create index audit_delivery on gateway.audit (delivery_id);
