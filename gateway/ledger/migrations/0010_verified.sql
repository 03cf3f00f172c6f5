-- How an event was verified: under which secret, and how far apart the clocks were.
-- oldest code: 9

alter table gateway.processed_events add column verified_by text, add column clock_s real;
comment on column gateway.processed_events.verified_by is 'The reference of the secret that matched, never the secret.';
comment on column gateway.processed_events.clock_s is 'Our clock minus the time that the sender signed.';
