-- Renamed routes and handlers: what the ledger has under the first name goes on under it, whatever the current name is.
-- oldest code: 29

create table gateway.names (
    kind         text        not null check (kind in ('route', 'handler')),
    name         text        not null,
    identity     text        not null,
    seen_at      timestamptz not null default now(),
    primary key (kind, name)
);
comment on table gateway.names is
    'Names of renamed routes and handlers (formerly). One that was never renamed is its own identity, and has no row.';
comment on column gateway.names.identity is 'What the columns route and handler of all tables hold: the first name.';
comment on column gateway.names.seen_at is
    'When a process that started last made it the current name of its identity, which people see.';
