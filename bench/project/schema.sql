-- What the handlers write, and the tables of the contestants.

create table if not exists orders (
    id      text        primary key,
    status  text        not null,
    amount  bigint      not null,
    version timestamptz not null
);

-- No unique key: an effect that was applied twice is two rows.
create table if not exists effects (event_id text not null);

create table if not exists textbook (
    event_id     text        primary key,
    type         text        not null,
    body         bytea       not null,
    received_at  timestamptz not null default now(),
    processed_at timestamptz
);

-- What the bare loop marks: the least that a queue in a table needs.
create table if not exists marks (
    id          bigint      generated always as identity primary key,
    event_id    text        not null,
    status      text        not null default 'pending',
    finished_at timestamptz
);
create index if not exists marks_pending on marks (id) where status = 'pending';
alter table marks set (fillfactor = 70);

create table if not exists commits (event_id text primary key, body bytea not null);
alter table commits alter column body set storage main;
alter table commits set (toast_tuple_target = 8160);
