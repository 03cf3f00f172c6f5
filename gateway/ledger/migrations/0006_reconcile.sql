-- What never arrived: runs that ask the providers for it, the gaps that they found, and what was refused.
-- oldest code: 4

alter table gateway.processed_events add column reconciled boolean not null default false;
comment on column gateway.processed_events.reconciled is
    'Fetched from the provider''s API by reconcile: the body is what the API returned, and was not signed.';

create table gateway.reconciliations (
    id            bigint generated always as identity primary key,
    route         text        not null,
    -- Who ordered it; 'schedule' where the route did.
    actor         text        not null,
    -- What it looks at: what happened from since (cut to what can be known) until shortly before it began.
    since         timestamptz not null,
    until         timestamptz not null,
    -- Why since is not what was asked for.
    note          text,
    dry_run       boolean     not null,
    status        text        not null default 'running'
                  check (status in ('running', 'done', 'failed', 'stopped')),
    -- Whether a process has taken it up, and holds the route's advisory lock for as long as it lives.
    taken         boolean     not null default false,
    phase         text        not null default 'listing'
                  check (phase in ('listing', 'recovering', 'waiting')),
    -- The provider's place in its listing, to go on from.
    cursor        text,
    listed        bigint      not null default 0,
    missing       bigint      not null default 0,
    recovered     bigint      not null default 0,
    unrecoverable bigint      not null default 0,
    error         text,
    started_at    timestamptz not null default now(),
    stepped_at    timestamptz not null default now(),
    finished_at   timestamptz
);
comment on table gateway.reconciliations is 'Runs that ask a provider what it sent, and how far each has come.';
create unique index reconciliations_running on gateway.reconciliations (route) where status = 'running';
create index reconciliations_route on gateway.reconciliations (route, id);

create table gateway.gaps (
    route         text        not null,
    event_id      text        not null,
    -- The last run that had to do with it.
    run_id        bigint      not null,
    type          text        not null,
    -- By what the provider can be asked for it: a delivery id of GitHub's, a connected account of Stripe's.
    handle        text        not null,
    handled_at    timestamptz not null,
    -- When it happened or was first delivered; and whether that is known, or only a redelivery was seen.
    occurred_at   timestamptz not null,
    is_first      boolean     not null,
    status        text        not null default 'missing'
                  check (status in ('missing', 'asked', 'recovered', 'unrecoverable')),
    -- Redeliveries asked for: how many, when the last one was, and by which run.
    asks          integer     not null default 0,
    asked_at      timestamptz,
    asked_run     bigint,
    -- What the provider says of its last delivery.
    recorded      text,
    -- Why it is unrecoverable, or not recovered yet.
    reason        text,
    found_at      timestamptz not null default now(),
    closed_at     timestamptz,
    primary key (route, event_id)
);
comment on table gateway.gaps is 'Events that a provider had sent and the ledger had not seen, and what became of them.';
create index gaps_run on gateway.gaps (run_id, status, occurred_at, event_id);
create index gaps_open on gateway.gaps (route) where status in ('missing', 'asked');
create index gaps_closed on gateway.gaps (closed_at) where closed_at is not null;

create table gateway.refusals (
    route         text        not null,
    event_id      text        not null,
    digest        bytea       not null,
    refused_at    timestamptz not null default now(),
    primary key (route, event_id)
);
comment on table gateway.refusals is 'Delivery ids that were refused as REPLAYED: for reconcile they have been seen.';
create index refusals_digest on gateway.refusals (route, digest);
create index refusals_at on gateway.refusals (refused_at);
