-- Which keys are in use can be told without a look at payloads: who counts keys may not read them.
-- oldest code: 9

update gateway.processed_events set key_id = '' where key_id is not null and body is null;
drop index gateway.processed_events_key;
create index processed_events_key on gateway.processed_events (key_id, route, event_id) where key_id > '';
comment on column gateway.processed_events.key_id is
    'The key under which body holds headers and body sealed; empty once they are gone. Digest and guard are keyed then. Null: as they came.';
