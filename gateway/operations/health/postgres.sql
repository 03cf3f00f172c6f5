-- name: read_durability
-- The version, and whether commits survive.
select current_setting('server_version') as version, current_setting('fsync') as fsync,
       current_setting('full_page_writes') as full_page_writes,
       current_setting('synchronous_commit') as synchronous_commit;

-- name: read_defaults
-- How transactions of this role begin in this database; null where the server does not know the setting yet.
-- And the role, if tables without a schema in their name are created in the ledger's.
select case when current_schema() = 'gateway' then current_user end as creates_in_ledger,
       current_setting('default_transaction_isolation') as isolation,
       current_setting('default_transaction_read_only')::boolean as is_read_only,
       current_setting('statement_timeout') as statement_timeout,
       current_setting('transaction_timeout', true) as transaction_timeout;

-- name: read_privileges
-- What this role may not do with the ledger, and whether it could migrate it. Also where it may do nothing.
-- One that is of the roles in deploy/roles.sql has what they have; all but one of them may not read everything.
with ledger as (
    select oid, nspowner from pg_namespace where nspname = 'gateway'
), tables as (
    select c.oid, c.relname, c.relowner
    from pg_class c join ledger on c.relnamespace = ledger.oid
    where c.relkind = 'r'
)
select current_user::text as role,
       exists (select from ledger) as is_there,
       array (
           select rolname::text from pg_roles
           where rolname in ('gateway_serve', 'gateway_worker', 'gateway_operator', 'gateway_readonly')
             and pg_has_role(oid, 'usage')
           order by rolname
       ) as groups,
       (select rolsuper from pg_roles where rolname = current_user) as is_superuser,
       array (
           select 'gateway.' || relname from tables where not has_table_privilege(oid, 'select') order by relname
       ) as unread,
       array (
           select 'usage on schema gateway' from ledger where not has_schema_privilege(oid, 'usage')
           union all
           select * from (
               select privilege || ' on gateway.' || relname
               from tables
               cross join unnest(array['select', 'insert', 'update', 'delete']) as privilege
               where not has_table_privilege(oid, privilege)
                 and (relname <> 'migrations' or privilege = 'select')
               order by relname, privilege
           ) lacking
       ) as missing,
       has_function_privilege('pg_advisory_xact_lock(bigint)', 'execute') as may_lock,
       case when exists (select from ledger)
            then (select has_schema_privilege(oid, 'create') from ledger)
                 and not exists (select from tables where not pg_has_role(relowner, 'usage'))
            else has_database_privilege(current_database(), 'create') end as may_migrate,
       coalesce((select pg_get_userbyid(nspowner)::text from ledger),
                (select pg_get_userbyid(datdba)::text from pg_database
                 where datname = current_database())) as owner;

-- name: is_encrypted
-- Whether this session is.
select ssl from pg_stat_ssl where pid = pg_backend_pid();

-- name: find_idle_transactions
-- Transactions that somebody left open for longer than this, and the oldest of them.
select count(*) as sessions, (array_agg(pid order by xact_start))[1] as pid,
       (array_agg(application_name order by xact_start))[1] as application,
       max(now() - xact_start) as age
from pg_stat_activity
where datname = current_database() and state like 'idle in transaction%'
  and xact_start < now() - $1::interval
  and application_name <> 'gateway reconcile lock';  -- which only holds the right to reconcile

-- name: list_bloated
-- Tables of the ledger with more dead rows than others, and more than so many.
select relname as name, n_dead_tup as dead, n_live_tup as live
from pg_stat_user_tables
where schemaname = 'gateway' and n_dead_tup > greatest(n_live_tup, $1)
order by n_dead_tup desc;
