-- name: lock_rejected
-- One at a time writes to the ring, until the end of its transaction: so its bounds hold exactly.
select pg_advisory_xact_lock($1);

-- name: keep_rejected
-- Inserts rejected requests, rejected items and duplicates, and returns how many rows were written. The retry of a batch
-- brings the same items again: a no-op. Of identical duplicates the first is kept, with their number (rejected_verified).
-- Nothing else of it changes: its time is in the id of the event that a release makes of it, and in what its body is sealed for.
with inserted as (
    insert into gateway.rejected as kept
        (route, at, code, cause, detail, shadow, method, path, address, sender, headers, body, body_bytes,
         digest, key_id, verified_by, copies, size)
    select r.route, r.at, r.code, r.cause, r.detail, r.shadow, r.method, r.path, r.address, r.sender,
           r.headers, b.body, r.body_bytes, decode(r.digest, 'hex'), r.key_id, r.verified_by, r.copies,
           r.size
    from json_to_recordset($1::json) as r (
        n bigint, route text, at timestamptz, code text, cause text, detail text, shadow boolean,
        method text, path text, address text, sender text, headers jsonb, body_bytes bigint,
        digest text, key_id text, verified_by text, copies integer, size integer)
    join unnest($2::bytea[]) with ordinality as b (body, n) using (n)
    order by r.n
    on conflict (route, digest, (code = 'DUPLICATE')) where verified_by is not null and released_at is null
    do update set copies = kept.copies + excluded.copies
    where kept.code = 'DUPLICATE'
    returning id
)
select count(*) from inserted;

-- name: measure_items
-- How many rejected items of a route wait to be released, and what they take (rejected_verified).
select count(*) as rows, coalesce(sum(size), 0) as bytes
from gateway.rejected
where route = $1 and verified_by is not null and released_at is null and code <> 'DUPLICATE';

-- name: count_items
-- Rejected items that wait to be released, by route (rejected_verified).
select route, count(*) as items
from gateway.rejected
where verified_by is not null and released_at is null and code <> 'DUPLICATE'
group by route;

-- name: trim_rejected
-- Of each of these routes as many rows and bytes as there may be. The places are dealt out by turns: to
-- the causes first, and among those of one cause to their senders; the newest of each first, and next
-- to it the very first. So a flood of one kind gives way, and not what is rare (rejected_route). Rejected items that wait
-- to be released stay. Returns how many duplicates that were acknowledged, and not released, were deleted.
with dealt as (
    select id, route, at, size, code, cause,
           least(row_number() over newest, case row_number() over oldest when 1 then 2 end) as turn
    from gateway.rejected
    where route = any ($1::text[]) and (verified_by is null or released_at is not null or code = 'DUPLICATE')
    window newest as (partition by route, code, cause, sender order by at desc, id desc),
           oldest as (partition by route, code, cause, sender order by at, id)
), ranked as (
    select *, row_number() over (partition by route, code, cause order by turn, at desc, id desc) as round
    from dealt
), kept as (
    select id, row_number() over best as rows, sum(size) over best as bytes
    from ranked
    window best as (partition by route order by round, at desc, id desc)
), trimmed as (
    delete from gateway.rejected
    where id = any (array (select id from kept where rows > $2 or bytes > $3))
    returning code, verified_by, released_at
)
select count(*) from trimmed where code = 'DUPLICATE' and verified_by is not null and released_at is null;

-- name: list_rejected
-- Refused requests, newest first.
select id, route, at, code, cause, detail, shadow, copies, method, path, address, body_bytes,
       digest is not null and released_at is null as body_kept, released_at, released_as
from gateway.rejected
where coalesce(route = $1, true) and coalesce(code = $2, true)
  and at >= coalesce($3, timestamptz '-infinity') and id < coalesce($4, 9223372036854775807)
order by id desc
limit $5;

-- name: group_rejected
-- What refused requests have in common, the latest first, with an example of each.
select count(*) as count, route, code, cause, (array_agg(detail order by id desc))[1] as detail,
       count(distinct sender) as senders, min(at) as first_at, max(at) as last_at, max(id) as id,
       count(*) filter (where digest is not null and released_at is null) as releasable,
       count(released_at) as released
from gateway.rejected
where coalesce(route = $1, true) and coalesce(code = $2, true)
  and at >= coalesce($3, timestamptz '-infinity')
group by route, code, cause
order by max(at) desc, route, code, cause
limit $4;

-- name: find_rejected
-- One refused request, with all that was kept of it (primary key).
select id, route, at, code, cause, detail, shadow, copies, method, path, address, headers, body, body_bytes,
       encode(digest, 'hex') as digest, key_id, released_at, released_as
from gateway.rejected
where id = $1;

-- name: hold_rejected
-- The same, held against whoever else wants to release it; no row where another holds it.
select id, route, at, code, method, path, address, sender, headers, body, body_bytes, key_id, verified_by, released_at,
       released_as
from gateway.rejected
where id = $1
for update skip locked;

-- name: next_rejected
-- What can be asked to be released, oldest first, behind a mark (primary key). Repeats of a body, which a person
-- must judge, only by their code.
select id
from gateway.rejected
where released_at is null and not shadow and id > $4
  and coalesce(route = $1, true) and coalesce(code = $2, code not in ('REPEATED_BODY', 'DUPLICATE'))
  and at >= coalesce($3, timestamptz '-infinity')
order by id
limit $5;

-- name: mark_released
-- Says as what it was released; what came is in the event from now on. With a row of the audit for each.
with marked as (
    update gateway.rejected
    set released_at = now(), released_as = $2, headers = null, body = null, size = 0
    where id = $1
    returning id
)
insert into gateway.audit (actor, action, route, event_id, reason)
select $4, 'release', $3, e.id, $5
from marked
left join unnest($2::text[]) as e (id) on true;

-- name: mark_repeated
-- A release found that the bytes were claimed before: from now on the row is a repeat, to be judged as one.
update gateway.rejected
set code = 'REPEATED_BODY', cause = 'repeated_body', detail = $2
where id = $1;

-- name: forget_rejected
-- Rejected requests of long ago (rejected_at). Rejected items that wait to be released are kept for at least 90 days, as
-- dead letters are by default: their sender does not send them again.
delete from gateway.rejected
where id = any (array (
    select id
    from gateway.rejected
    where at < now() - $1::interval
      and (verified_by is null or released_at is not null or code = 'DUPLICATE'
           or at < now() - interval '90 days')
    order by at
    limit $2
));

-- name: count_rejected_of
-- Refused requests in which a subject is named, wherever it stands in them: nobody has verified what
-- they say of themselves. What is sealed cannot be looked into, and goes with them.
select count(*)
from gateway.rejected
where coalesce(route = $2, true)
  and (position(convert_to($1, 'UTF8') in coalesce(body, '')) > 0 or position($1 in headers::text) > 0
       or position($1 in path) > 0 or position($1 in detail) > 0 or $1 = any (released_as)
       or key_id is not null);

-- name: erase_rejected
-- Forgets the same, with a row of the audit.
with gone as (
    delete from gateway.rejected
    where coalesce(route = $2, true)
      and (position(convert_to($1, 'UTF8') in coalesce(body, '')) > 0 or position($1 in headers::text) > 0
           or position($1 in path) > 0 or position($1 in detail) > 0 or $1 = any (released_as)
       or key_id is not null)
    returning id
), noted as (
    insert into gateway.audit (actor, action, route, reason)
    select $3, 'erase', $2, $4 from gone having count(*) > 0
)
select count(*) from gone;

-- name: compare_clocks
-- Of the last verified events, how far the clocks of their senders were from ours (processed_events_received).
select count(*) as senders, percentile_cont(0.5) within group (order by clock_s) as apart_s
from (
    select clock_s
    from gateway.processed_events
    where received_at > now() - interval '1 hour'
    order by received_at desc
    limit $1
) as lately
where clock_s is not null;

-- name: note_refusals
-- Delivery ids that were refused as REPEATED_BODY: of the same bytes only so many (refusals_digest), so that
-- who has captured one request cannot fill the disk.
insert into gateway.refusals (route, event_id, digest)
select f.route, f.event_id, f.digest
from (
    select i.*, row_number() over (partition by i.route, i.digest order by i.event_id) as n
    from unnest($1::text[], $2::text[], $3::bytea[]) as i (route, event_id, digest)
) f
cross join lateral (
    select count(*) as kept
    from (select from gateway.refusals k where k.route = f.route and k.digest = f.digest limit $4) counted
) known
where known.kept + f.n <= $4
order by f.route, f.event_id
on conflict do nothing;

-- name: forget_refusals
-- Refused ids that are older than any key (refusals_at).
delete from gateway.refusals
where ctid = any (array (
    select ctid
    from gateway.refusals
    where refused_at < now() - $1::interval
    order by refused_at
    limit $2
));
