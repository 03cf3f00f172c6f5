-- What happened each minute: for rates, success and times without reading events or attempts.
-- oldest code: 4

-- Requests of a route (an empty handler), and runs of a handler.
create table gateway.tallies (
    minute       timestamptz not null,
    route        text        not null,
    handler      text        not null,
    outcome      text        not null,
    n            bigint      not null,
    -- How many took how long: the first up to 0.1 ms, each next one up to 1.2 times as long.
    times        integer[]   not null default '{}',
    primary key (minute, route, handler, outcome)
) with (fillfactor = 60);  -- the rows of this minute are updated every few seconds
comment on table gateway.tallies is 'What happened each minute, per route or handler and outcome; kept for 8 days.';

create table gateway.totals (
    route        text        not null,
    handler      text        not null,
    outcome      text        not null,
    n            bigint      not null,
    last_at      timestamptz not null,
    primary key (route, handler, outcome)
) with (fillfactor = 60);
comment on table gateway.totals is 'The same since counting began, and when it happened last.';
insert into gateway.totals (route, handler, outcome, n, last_at)
select route, '', 'accepted', 0, max(received_at)
from (select route, received_at from gateway.processed_events order by received_at desc limit 100000) newest
group by route;

alter table gateway.workers add column version text;
comment on column gateway.workers.version is 'Of the gateway''s code; null where it is older than this column.';
