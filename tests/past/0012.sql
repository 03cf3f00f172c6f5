-- A secret in use, and a reload.

insert into gateway.secret_uses (route, secret, first_used_at, last_used_at, uses)
values ('stripe', 'env:STRIPE_WEBHOOK_SECRET', now() - interval '9 d', now(), 12);
insert into gateway.reloads (host, pid, outcome) values ('old', 1, 'done');
