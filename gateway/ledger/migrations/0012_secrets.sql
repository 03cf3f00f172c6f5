-- Which secret verified when, and whether the serve processes took the secrets that they were last given.
-- oldest code: 9

create table gateway.secret_uses (
    route         text        not null,
    secret        text        not null,
    first_used_at timestamptz not null,
    last_used_at  timestamptz not null,
    uses          bigint      not null,
    primary key (route, secret)
) with (fillfactor = 60);  -- the row of a secret in use is updated every few seconds
comment on table gateway.secret_uses is 'When each secret of a route last verified a request: whether an old one can go.';
comment on column gateway.secret_uses.secret is 'Its reference, never the secret.';

create table gateway.reloads (
    host          text        not null,
    pid           integer     not null,
    at            timestamptz not null default now(),
    outcome       text        not null check (outcome in ('done', 'refused')),
    error         text,
    primary key (host, pid)
);
comment on table gateway.reloads is 'The last reload (SIGHUP) of each serve process.';
