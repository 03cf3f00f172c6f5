-- The roles under which compose.yaml has its processes log in. For psql, after roles.sql, with the passwords in the
-- environment: SERVE_PASSWORD and WORKER_PASSWORD. May be run again, and with other passwords.

\getenv serve_password SERVE_PASSWORD
\getenv worker_password WORKER_PASSWORD

select format('create role %I login', name) from (values ('serve'), ('worker')) as wanted (name)
where not exists (select from pg_roles where rolname = name) \gexec

alter role serve login password :'serve_password';
alter role worker login password :'worker_password';
grant gateway_serve to serve;
grant gateway_worker to worker;

-- Handlers work with the tables of your own schema files, which are the owner's.
grant usage on schema public to gateway_worker;
grant select, insert, update, delete on all tables in schema public to gateway_worker;
grant usage on all sequences in schema public to gateway_worker;
