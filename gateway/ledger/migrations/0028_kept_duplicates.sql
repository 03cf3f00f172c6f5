-- A duplicate of a sender without event ids is answered 2xx and may be another event, so it is kept here before that
-- answer: one row for all identical bodies until it is released, the first of them with their number. It was verified
-- when it came.
-- oldest code: 28

alter table gateway.rejected add column copies integer not null default 1;
comment on column gateway.rejected.copies is
    'How many identical requests the row stands for: duplicates of a sender without event ids.';
comment on column gateway.rejected.verified_by is
    'The reference of the secret under which it was verified: an item of an accepted batch, or a duplicate. Null: not verified.';

-- An identical body that comes after the release is kept again. An item of a batch and a duplicate may have the same bytes.
drop index gateway.rejected_items;
create unique index rejected_verified on gateway.rejected (route, digest, (code = 'DUPLICATE'))
    where verified_by is not null and released_at is null;
