-- No unique key anywhere: an effect that is applied twice is two rows, and one too many in a tally.

create table if not exists effects (
    n        bigint generated always as identity primary key,
    event_id text not null,
    handler  text not null,
    renamed  boolean not null default false  -- whether the handler had its new name
);

create table if not exists tallies (shard integer primary key, n bigint not null default 0);
insert into tallies (shard) select generate_series(0, 15) on conflict do nothing;

create table if not exists spans (
    route    text not null,
    began_at float8 not null,
    ended_at float8 not null
);

-- Written in the run that completes the delivery: its handler goes on without the outcome of its call.
create table if not exists gone_on (event_id text not null, because text not null);

create table if not exists singles (route text not null, subject text not null, event_id text not null);
