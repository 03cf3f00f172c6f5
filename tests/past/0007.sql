-- Counts.

insert into gateway.tallies (minute, route, handler, outcome, n, times)
values (date_trunc('minute', now()), 'stripe', 'handlers.count', 'done', 5, '{1,2,2}');
insert into gateway.totals (route, handler, outcome, n, last_at)
values ('stripe', '', 'duplicate', 7, now());
