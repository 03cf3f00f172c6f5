-- Sessions of the console are signed and stand nowhere: this is where those stand that a log-out has ended,
-- until they would have run out by themselves.
-- oldest code: 17

create table gateway.ended_sessions (
    id text primary key,
    until timestamptz not null
);
comment on table gateway.ended_sessions is 'Sessions of the console that a log-out has ended, until they would have run out.';
