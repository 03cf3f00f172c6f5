-- A refused request.

insert into gateway.rejected
    (route, at, code, cause, detail, method, path, sender, headers, body, size)
values
    ('stripe', now(), 'BAD_SIGNATURE', 'secret', 'signed with another secret', 'POST',
     '/webhooks/stripe', 'someone', '{}', '{}', 2);
