-- A handler that was renamed.

insert into gateway.names (kind, name, identity, seen_at)
values ('handler', 'handlers.new_name', 'handlers.old_name', now());
