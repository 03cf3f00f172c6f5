-- credits.py
create table if not exists topups (session text primary key, account text not null, amount bigint not null);
create table if not exists accounts (account text primary key, balance bigint not null default 0);

create table if not exists club_invoices (invoice text primary key, customer text not null);
create table if not exists club_members (customer text primary key, points bigint not null, tier text not null);

create table if not exists stamped_invoices (invoice text primary key, customer text not null);
create table if not exists stamp_cards (customer text primary key, stamps bigint not null);

create table if not exists spend_rows (invoice text primary key, customer text not null, amount bigint not null);
create table if not exists spend_totals (customer text primary key, invoices bigint not null, spent bigint not null);

create table if not exists turnover_rows (invoice text primary key, customer text not null, amount bigint not null);
create table if not exists turnover_totals (customer text primary key, invoices bigint not null, turnover bigint not null);

create table if not exists lifetime_rows (invoice text primary key, customer text not null, amount bigint not null);
create table if not exists lifetime_totals (customer text primary key, invoices bigint not null, value bigint not null);

-- invoices.py
create table if not exists receipt_series (series text primary key, last bigint not null default 0);
create table if not exists receipts (invoice text primary key, series text not null, number bigint not null, unique (series, number));
create table if not exists revenue (invoice text primary key, customer text, amount bigint not null);
create table if not exists backup_charges (invoice text primary key, charge text);

-- mails.py
create table if not exists reminders (invoice text primary key, sent_at timestamptz not null default now());

-- payments.py
create table if not exists orders (id text primary key, status text not null default 'pending', paid bigint);
create table if not exists refund_state (charge text primary key, refunded bigint not null, first_at timestamptz not null);
create table if not exists sales (charge text primary key, amount bigint not null, refunded bigint not null default 0);
create table if not exists charges_eur (charge text primary key, amount bigint not null, currency text not null, rate double precision not null, booked_at timestamptz not null default now());
create table if not exists seller_transfers (payment_intent text primary key, amount bigint not null);
create table if not exists seller_payouts (charge text primary key, amount bigint not null);
create table if not exists tickets (session text primary key, id uuid not null unique, code text not null unique, issued_at timestamptz not null default now());

-- subscriptions.py
create table if not exists workspaces (subscription text primary key, customer text not null, state text not null);
create table if not exists subscription_state (id text primary key, status text not null, cancel_at_period_end boolean not null, version timestamptz not null);
create table if not exists subscription_items (id bigserial primary key, subscription text not null, price text, quantity bigint);
create table if not exists customer_plans (subscription text primary key, customer text not null, is_primary boolean not null);
create table if not exists tax_profiles (customer text primary key, country text not null, rate double precision not null, version timestamptz not null);

-- repos.py
create table if not exists push_log (delivery text primary key, repository bigint not null, commits integer not null);
create table if not exists tracked_issues (id bigint primary key, repository bigint not null, title text not null, state text not null, deleted_at timestamptz, version timestamptz not null);
create table if not exists issue_channels (issue bigint primary key, channel text not null);
create table if not exists review_queue (id bigint primary key, repository text not null, title text not null, state text not null, head text not null);

-- shipping.py
create table if not exists courier_bookings (order_id text primary key);
