-- A delivery is completed only in the transaction that was begun for its run, and nothing that a handler's SQL leaves
-- in its session reaches the next delivery.
-- oldest code: 23

-- A handler that ends its own transaction commits its effect without the completion of its delivery. If the run could
-- still be completed, or retried, the effect would be applied again. So the worker sets gateway.transaction to a
-- random value when it begins the transaction of a run (SET LOCAL, or set_config with is_local). Postgres forgets the
-- value when the transaction ends. settle_done demands it, whichever driver has begun the transaction.
drop function gateway.settle_done(bigint, uuid);
create function gateway.settle_done(delivery_id bigint, token uuid, proof text) returns void
language plpgsql
as $$
begin
    if coalesce(proof, '') = '' or current_setting('gateway.transaction', true) is distinct from proof then
        raise exception 'this is not the transaction in which delivery % began to run', delivery_id
            using errcode = 'GW002';
    end if;
    perform gateway.end_run(delivery_id, token, 'done', 'done', 1, '0', null, null, null, null, null);
end
$$;
comment on function gateway.settle_done is
    'Completes a run in its handler''s transaction, at any isolation level; raises GW002 if gateway.transaction is not the proof. The caller advances the ordering key after the commit.';

-- State of a session that RESET ALL leaves, and that no other command undoes without harm: DEALLOCATE ALL would also
-- drop the statements that the driver, or a pooler, has prepared.
create function gateway.forget_session() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    prepared text;
begin
    for prepared in select name from pg_catalog.pg_prepared_statements where from_sql loop
        execute format('deallocate %I', prepared);
    end loop;
    perform setseed(hashtext(gen_random_uuid()::text) / 2147483648.0);
end
$$;
comment on function gateway.forget_session is
    'Undoes PREPARE and setseed in a session that the SQL of a handler has used.';
