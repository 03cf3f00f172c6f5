-- A session that somebody has ended.

insert into gateway.ended_sessions (id, until) values ('nonce', now() + interval '6 h');
