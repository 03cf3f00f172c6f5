-- Whose the newest dead letters are is read from their index alone, in its order: without route and handler
-- in it, all that are dead were read and sorted to count the newest ten thousand.
-- oldest code: 9

create index deliveries_dead_newest on gateway.deliveries (finished_at, id) include (route, handler)
    where status = 'dead';
drop index gateway.deliveries_dead;
alter index gateway.deliveries_dead_newest rename to deliveries_dead;
