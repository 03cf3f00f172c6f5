-- Alerts: what stands, and who was told of it.
-- oldest code: 4

create table gateway.alerts (
    kind         text        not null check (kind in ('dead', 'backlog')),
    route        text        not null,
    handler      text        not null,
    raised_at    timestamptz not null,
    -- Null while it stands.
    cleared_at   timestamptz,
    -- How often it was told since it was raised.
    round        integer     not null default 0,
    -- The last time, this one or an earlier one of the same handler.
    told_at      timestamptz,
    -- Dead letters up to this moment were told of.
    told_through timestamptz,
    -- Whether the handler was paused when it was looked at last.
    paused       boolean     not null default false,
    primary key (kind, route, handler)
);
comment on table gateway.alerts is 'What needs attention, or did: one row per handler and kind, so that it is told once.';

-- One message at a time per alert and destination: a later one takes the place of one that never got there.
create table gateway.alert_messages (
    kind         text        not null,
    route        text        not null,
    handler      text        not null,
    destination  text        not null check (destination in ('webhook', 'slack')),
    id           text        not null,
    message      json        not null,
    status       text        not null default 'waiting' check (status in ('waiting', 'sent', 'failed')),
    attempts     integer     not null default 0,
    -- When it may be sent, or sent again.
    next_at      timestamptz not null,
    error        text,
    -- When this destination took a message of this alert last.
    sent_at      timestamptz,
    primary key (kind, route, handler, destination)
);
comment on table gateway.alert_messages is 'The last message of each alert to each destination, and whether it got there.';
create index alert_messages_waiting on gateway.alert_messages (next_at) where status = 'waiting';

-- The dead letters of one handler, newest or oldest first.
create index deliveries_dead_of on gateway.deliveries (route, handler, finished_at, id) where status = 'dead';
