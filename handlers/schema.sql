-- The tables of the example handlers. `gateway migrate` runs this file every time: it must be safe to run again.
--
-- Each table has the unique key and the `version` that `ctx.upsert` needs. The version is the time of the state that the
-- row shows, by the provider's clock; older state never overwrites newer. Its fraction of a second, and in Stripe's tables
-- up to three seconds, are there to break ties: for reports, add a time column of your own.

create table if not exists orders (
    payment_intent text        primary key,
    status         text        not null default 'pending' check (status in ('pending', 'failed', 'fulfilled')),
    amount         bigint,     -- in the currency's smallest unit; null while only a refund is known
    currency       text,
    customer       text,
    failure        text,       -- Stripe's error code, where the last attempt to pay failed
    metadata       jsonb,      -- what your checkout gave to the payment intent, such as your own order id
    refunded       bigint      not null default 0,
    refunded_at    timestamptz not null default '-infinity',
    version        timestamptz not null default '-infinity'
);
comment on table orders is 'One row per Stripe payment intent.';

create table if not exists subscriptions (
    id                   text        primary key,
    customer             text        not null,
    status               text        not null,
    cancel_at_period_end boolean     not null,
    metadata             jsonb       not null,
    version              timestamptz not null
);
comment on table subscriptions is 'One row per Stripe subscription; a deleted one has status canceled.';

create table if not exists invoices (
    id            text        primary key,
    customer      text,
    status        text        not null,
    currency      text        not null,
    amount_due    bigint      not null,
    amount_paid   bigint      not null,
    attempt_count integer     not null,
    version       timestamptz not null
);
comment on table invoices is 'One row per Stripe invoice.';
comment on column invoices.status is 'draft, open, paid, void, uncollectible or deleted. Open with attempts: a payment failed.';

create table if not exists pushes (
    id            text        primary key,
    repository_id bigint      not null,
    ref           text        not null,
    before        text        not null,
    after         text        not null,
    pusher        text        not null,
    version       timestamptz not null
);
comment on table pushes is 'One row per push; the id is that of GitHub''s delivery.';

create table if not exists branches (
    repository_id bigint      not null,
    name          text        not null,
    repository    text        not null,
    head          text,
    version       timestamptz not null,
    primary key (repository_id, name)
);
comment on table branches is 'One row per branch that was ever pushed to.';
comment on column branches.head is 'The newest commit; null once the branch is deleted.';

create table if not exists pull_requests (
    repository_id bigint      not null,
    number        integer     not null,
    repository    text        not null,
    title         text        not null,
    author        text,       -- null where GitHub no longer has the account
    state         text        not null check (state in ('open', 'closed', 'merged')),
    head          text        not null,
    version       timestamptz not null,
    primary key (repository_id, number)
);
comment on table pull_requests is 'One row per pull request.';

create table if not exists issues (
    repository_id bigint      not null,
    number        integer     not null,
    repository    text        not null,
    title         text        not null,
    author        text,       -- null where GitHub no longer has the account
    state         text        not null check (state in ('open', 'closed', 'deleted', 'transferred')),
    version       timestamptz not null,
    primary key (repository_id, number)
);
comment on table issues is 'One row per issue.';
