-- What was there before there were days, in tables of its own: whoever makes a table for another day has all read
-- that lies in the one for what has none, and nobody gets at a payload meanwhile.
-- oldest code: 17

do $$
declare
    parent text;
    day    date;
    filed  text;
    lent   record;
begin
    foreach parent in array array['payloads', 'attempts'] loop
        execute format('select max(until) from gateway.%I where until > now() + interval ''9 years''',
                       parent || '_default') into day;
        filed := parent || to_char(day, '"_"YYYYMMDD');
        continue when day is null or to_regclass(format('gateway.%I', filed)) is not null;
        execute format('alter table gateway.%I detach partition gateway.%I', parent, parent || '_default');
        execute format('alter table gateway.%I rename to %I', parent || '_default', filed);
        execute format('create table gateway.%I partition of gateway.%I default', parent || '_default', parent);
        if parent = 'payloads' then
            alter table gateway.payloads_default set (toast_tuple_target = 8160);
        end if;
        for lent in
            select acl.privilege_type as privilege, acl.grantee::regrole as grantee
            from pg_class c
            cross join aclexplode(c.relacl) acl
            where c.oid = to_regclass(format('gateway.%I', filed)) and acl.grantee not in (0, c.relowner)
        loop
            execute format('grant %s on gateway.%I to %s', lent.privilege, parent || '_default', lent.grantee);
        end loop;
        execute format('with others as (delete from gateway.%I where until <> %L returning *)'
                       ' insert into gateway.%I select * from others', filed, day, parent);
        execute format('alter table gateway.%I attach partition gateway.%I for values from (%L) to (%L)',
                       parent, filed, day, day + 1);
    end loop;
end
$$;
