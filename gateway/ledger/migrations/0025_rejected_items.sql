-- A batch is accepted without the items that cannot be read: its sender is answered 2xx and never sends them again, so
-- they are kept here before that answer. Unlike other rejected requests they were verified, with the whole batch.
-- oldest code: 24

alter table gateway.rejected add column verified_by text;
comment on column gateway.rejected.verified_by is
    'An item of an accepted batch: the reference of the secret under which the batch was verified. Null: a whole request.';
comment on table gateway.rejected is
    'Rejected requests, a few of each route and cause, and rejected items of accepted batches.';

-- The retry of a batch keeps none of its items twice.
create unique index rejected_items on gateway.rejected (route, digest) where verified_by is not null;
