-- An alert that is over, and its message.

insert into gateway.alerts (kind, route, handler, raised_at, cleared_at, round)
values ('dead', 'elsewhere', 'handlers.count', now(), now(), 1);
insert into gateway.alert_messages (kind, route, handler, destination, id, message, status, next_at)
values ('dead', 'elsewhere', 'handlers.count', 'slack', 'msg_1', '{}', 'sent', now());
