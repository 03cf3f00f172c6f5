-- For the console: hours to look back over, what an event is about, and listings that cost the same
-- however many events there are.
-- oldest code: 9

create table gateway.tally_hours (
    hour         timestamptz not null,
    route        text        not null,
    handler      text        not null,
    outcome      text        not null,
    n            bigint      not null,
    times        integer[]   not null default '{}',
    primary key (hour, route, handler, outcome)
) with (fillfactor = 60);
comment on table gateway.tally_hours is 'What happened each hour, per route or handler and outcome; kept for 90 days.';

insert into gateway.tally_hours (hour, route, handler, outcome, n)
select date_trunc('hour', minute, 'UTC'), route, handler, outcome, sum(n)
from gateway.tallies
group by 1, 2, 3, 4;

alter table gateway.processed_events add column object_id text;
comment on column gateway.processed_events.object_id is 'What the event is about: data.object.id of Stripe, acme/shop#42 of GitHub.';
create index processed_events_object on gateway.processed_events (object_id, received_at)
    where object_id is not null;

-- With the type beside the key a listing by route or type reads no rows that it does not show.
create index processed_events_newest on gateway.processed_events (received_at, route, event_id) include (type);
drop index gateway.processed_events_received;

-- What errors of one cause have in common: what stands in quotes, and words with a digit (numbers, ids),
-- differ between them; a status, as in HTTP 503, does not. Only where there may be a status is it looked for
-- behind each word, which takes longer than all the rest.
create function gateway.common_error(error text) returns text
language sql immutable parallel safe
return regexp_replace(
    regexp_replace(
        error,
        '"[^"]*(?:"|$)|`[^`]*(?:`|$)|(?<!\w)''[^'']*(?:''(?!\w)|$)|[[:cntrl:]]+|'
        || case when error like '%HTTP %' then '(?<!HTTP |[[:alnum:]_-])' else '' end
        || '[[:alnum:]_-]*\d[[:alnum:]_-]*',
        '…', 'g'),
    '…(?:\W{0,2}…)+', '…', 'g');

-- Of what deliveries died: told apart by the sweep, so that nobody who looks has to wait for it.
create table gateway.causes (
    id           bigint generated always as identity primary key,
    route        text        not null,
    handler      text        not null,
    -- What the errors have in common; and the error itself, where it was always the same.
    common       text        not null,
    error        text,
    unique (route, handler, common)
);
comment on table gateway.causes is 'Of what deliveries died: what errors of one handler have in common.';
alter table gateway.deliveries add column cause bigint;
comment on column gateway.deliveries.cause is 'Of a dead one: of what it died (gateway.causes); null until the sweep has seen it.';
create index deliveries_cause on gateway.deliveries (cause, finished_at, id) where status = 'dead';
