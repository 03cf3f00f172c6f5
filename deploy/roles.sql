-- Database roles with no more than each process needs (docs/security.md, "Database roles").
--
-- Run it as the owner of the schema `gateway`, after every `gateway migrate`:
--     psql --single-transaction --set ON_ERROR_STOP=1 --file deploy/roles.sql "$OWNER_URL"
-- or name it in routes.yaml, and `gateway migrate` runs it itself: `schema: [deploy/roles.sql, ...]`.
-- The first time, the owner must be allowed to create roles, or somebody else creates the four.
--
-- The roles have no login and no password. Make one that has, for each process:
--     create role serve login password '...' in role gateway_serve;
-- Handlers write tables of yours. Grant those to gateway_worker yourself:
--     grant select, insert, update on orders to gateway_worker;

do $$
declare
    role text;
begin
    foreach role in array array['gateway_serve', 'gateway_worker', 'gateway_operator', 'gateway_readonly'] loop
        if not exists (select from pg_roles where rolname = role) then
            execute format('create role %I nologin', role);
        end if;
    end loop;
end
$$;

-- What follows is all that they may do: what an older version of this file gave is taken back.
revoke all on all tables in schema gateway from gateway_serve, gateway_worker, gateway_operator, gateway_readonly;
revoke all on all sequences in schema gateway from gateway_serve, gateway_worker, gateway_operator, gateway_readonly;
revoke create on schema gateway from public;
grant usage on schema gateway to gateway_serve, gateway_worker, gateway_operator, gateway_readonly;
grant select on gateway.migrations, gateway.names to gateway_serve, gateway_worker, gateway_operator, gateway_readonly;
grant insert, update on gateway.names to gateway_serve, gateway_worker;  -- at their start, of what was renamed

-- Tables by the day: all may have them made ahead. Dropping one whose day has come is what retention does.
grant usage on sequence gateway.payload_ids to gateway_serve, gateway_worker, gateway_operator;
grant execute on function gateway.make_partitions() to gateway_serve, gateway_worker, gateway_operator;
grant execute on function gateway.detach_partition(text, date), gateway.drop_partition(text, date)
    to gateway_worker, gateway_operator;

-- `gateway serve`: takes events in, and can neither read a payload nor change or remove an event. (guard: who holds the
-- digest of a body, when a dedup window is over.)
grant insert, select (
    route, event_id, provider, type, account, object_id, livemode, occurred_at, received_at, digest, repeats, guard,
    repeat_of, spooled, reconciled, verified_by, clock_s, sealed, unverified, payload_id, payload_until, trace
) on gateway.processed_events to gateway_serve;
grant update (guard) on gateway.processed_events to gateway_serve;
grant insert on gateway.payloads to gateway_serve;
grant select on gateway.retention to gateway_serve;
grant select, insert, update (due_at) on gateway.deliveries to gateway_serve;  -- due_at: whose turn it is
grant select on gateway.handlers, gateway.pauses, gateway.workers to gateway_serve;
grant select, insert on gateway.refusals to gateway_serve;
grant select on gateway.reconciliations to gateway_serve;  -- for /metrics, as the next
grant select (route, status, closed_at) on gateway.gaps to gateway_serve;
grant select (delivery_id, status, error, unknown_at) on gateway.effects to gateway_serve;
-- What is refused it writes down and trims, and cannot read again.
grant insert, delete, select (id, route, at, code, cause, sender, size, digest, verified_by, copies, released_at),
    update (copies) on gateway.rejected to gateway_serve;
grant select, insert, update, delete on gateway.tallies, gateway.tally_hours, gateway.secret_uses, gateway.reloads
    to gateway_serve;
grant select, insert, update on gateway.totals, gateway.alerts to gateway_serve;
grant select, insert, update, delete on gateway.alert_messages to gateway_serve;

-- `gateway worker`: runs handlers, keeps retention, reconciles. Payloads are what it works with.
grant select, insert, update, delete on gateway.processed_events, gateway.deliveries to gateway_worker;
grant select, insert, delete, update (until) on gateway.payloads, gateway.attempts to gateway_worker;
grant select on gateway.payloads_default, gateway.attempts_default, gateway.partitions to gateway_worker;
grant select, insert, update on gateway.retention to gateway_worker;
grant select, insert, update, delete on gateway.effects, gateway.once_keys to gateway_worker;
grant select, insert, update, delete on gateway.workers, gateway.places to gateway_worker;
grant select, insert, update on gateway.handlers to gateway_worker;
grant select on gateway.pauses to gateway_worker;
-- Delete: what is past its retention. What a row says it cannot change: to lock one, any column will do.
grant select, insert, delete, update (id) on gateway.audit to gateway_worker;
grant select, delete on gateway.bulk_orders to gateway_worker;
grant select, insert, update, delete on gateway.reconciliations, gateway.gaps to gateway_worker;
grant select, delete on gateway.refusals to gateway_worker;
grant delete, select (id, at, code, verified_by, released_at) on gateway.rejected to gateway_worker;
grant select, insert, update, delete on gateway.tallies, gateway.tally_hours, gateway.causes to gateway_worker;
grant select, insert, update on gateway.totals, gateway.alerts to gateway_worker;
grant select, insert, update, delete on gateway.alert_messages to gateway_worker;

-- The commands, and `gateway serve` where it has an Admin API: `grant gateway_operator to serve`.
grant select on all tables in schema gateway to gateway_operator;
grant insert, update, delete on gateway.processed_events, gateway.payloads, gateway.deliveries to gateway_operator;
grant update, delete on gateway.attempts, gateway.effects to gateway_operator;
grant insert, update on gateway.retention to gateway_operator;
grant insert, update, delete on gateway.once_keys to gateway_operator;
grant insert, update, delete on gateway.audit, gateway.bulk_orders to gateway_operator;
grant insert, update, delete on gateway.pauses to gateway_operator;
grant insert, delete on gateway.ended_sessions to gateway_operator;
grant insert, update on gateway.reconciliations to gateway_operator;
grant insert, update, delete on gateway.gaps to gateway_operator;
grant update on gateway.alert_messages to gateway_operator;
grant insert, update, delete on gateway.rejected to gateway_operator;
grant insert, update, delete on gateway.tallies, gateway.tally_hours, gateway.secret_uses to gateway_operator;
grant delete on gateway.causes to gateway_operator;
grant insert, update on gateway.totals to gateway_operator;

-- People who look: everything but payloads, headers and what outside calls have answered.
grant select (
    route, event_id, provider, type, account, object_id, livemode, occurred_at, received_at, digest, repeats, guard,
    repeat_of, spooled, reconciled, verified_by, clock_s, sealed, unverified, payload_id, payload_until, trace
) on gateway.processed_events to gateway_readonly;
grant select (id, until, route, event_id, key_id) on gateway.payloads to gateway_readonly;
grant select (
    route, event_id, provider, type, account, object_id, livemode, occurred_at, received_at, digest, repeats, guard,
    repeat_of, spooled, reconciled, verified_by, clock_s, sealed, unverified, payload_id, payload_until, key_id, trace
) on gateway.events to gateway_readonly;
grant select (delivery_id, name, key, status, made_by, calls, error, begun_at, unknown_at, finished_at, key_id)
    on gateway.effects to gateway_readonly;
grant select (delivery_id, number, started_at, finished_at, outcome, error, key_id, until) on gateway.attempts to gateway_readonly;
grant select (
    id, route, at, code, cause, detail, shadow, method, path, address, sender, body_bytes, digest, key_id, size,
    verified_by, copies, released_at, released_as
) on gateway.rejected to gateway_readonly;
grant select on
    gateway.deliveries, gateway.workers, gateway.handlers, gateway.places, gateway.once_keys,
    gateway.pauses, gateway.audit, gateway.bulk_orders, gateway.reconciliations, gateway.gaps, gateway.refusals,
    gateway.tallies, gateway.tally_hours, gateway.causes, gateway.totals, gateway.alerts, gateway.alert_messages,
    gateway.secret_uses, gateway.reloads, gateway.retention, gateway.partitions
to gateway_readonly;
