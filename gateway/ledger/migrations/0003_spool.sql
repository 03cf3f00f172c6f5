-- Events that were acknowledged from the local spool while the ledger was away.
-- oldest code: 2

alter table gateway.processed_events add column spooled boolean not null default false;
comment on column gateway.processed_events.spooled is
    'Whether the event was acknowledged from the local spool, and claimed later.';
