-- Requests that were refused: a small ring per route, to find out why, and to let in what was right.
-- oldest code: 9

create table gateway.rejected (
    id           bigint generated always as identity primary key,
    -- Empty where no route has the path.
    route        text        not null,
    at           timestamptz not null,
    code         text        not null,
    -- In one word, by which they are grouped, and in a sentence.
    cause        text        not null,
    detail       text        not null,
    -- Accepted all the same: in development, by a route with `enforce: false`.
    shadow       boolean     not null default false,
    method       text        not null,
    path         text        not null,
    address      text,
    -- Who is likely the same: address and user agent. Whoever has many gives way to who has few.
    sender       text        not null,
    headers      jsonb,
    body         bytea,
    body_bytes   bigint,
    digest       bytea,
    -- The key under which path, headers and body are sealed in the body; null where they are not.
    key_id       text,
    -- What headers and body take.
    size         integer     not null,
    released_at  timestamptz,
    released_as  text[]
);
comment on table gateway.rejected is 'Refused requests, a few of each route and cause; none of them was verified.';
comment on column gateway.rejected.headers is 'Without credentials. Null once released.';
comment on column gateway.rejected.body is 'Null where it was too large to be kept, never came, or was released.';
alter table gateway.rejected alter column body set storage external;
create index rejected_route on gateway.rejected (route, id);
create index rejected_at on gateway.rejected (at);

-- Taken in development although nobody had signed them: `enforce: false`.
alter table gateway.processed_events add column unverified boolean not null default false;
comment on column gateway.processed_events.unverified is
    'Accepted in development by a route with `enforce: false`, although its signature was wrong.';
