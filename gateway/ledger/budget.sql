-- name: read_limits
-- How many connections this role may have at the most, what says so, and how many others there are: where
-- least are left.
with others as (
    select usename, datname
    from pg_stat_activity
    where datid is not null and coalesce(backend_type, 'client backend') = 'client backend'
      and pid <> pg_backend_pid()
)
select most, by, in_use
from (
    values
        (current_setting('max_connections')::integer
         - current_setting('superuser_reserved_connections')::integer
         - coalesce(current_setting('reserved_connections', true), '0')::integer, 'max_connections',
         (select count(*)::integer from others)),
        ((select rolconnlimit from pg_roles where rolname = current_user),
         'the role''s connection limit',
         (select count(*)::integer from others where usename = current_user)),
        ((select datconnlimit from pg_database where datname = current_database()),
         'the database''s connection limit',
         (select count(*)::integer from others where datname = current_database()))
) as limits (most, by, in_use)
where most >= 0
order by most - in_use, most
limit 1;
