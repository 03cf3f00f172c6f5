create table if not exists payments (id bigint generated always as identity, intent text, amount bigint);
create table if not exists receipts (intent text primary key, amount bigint);
create table if not exists accounts (customer text primary key, balance bigint not null default 0);
create table if not exists loyalty (customer text primary key, points bigint not null, since timestamptz not null);
create table if not exists customers (id text primary key, email text, details jsonb, version timestamptz);
create table if not exists subscriptions (id text primary key, status text, version timestamptz);
create table if not exists journal (
    n        bigint generated always as identity,
    token    uuid not null default gen_random_uuid(),
    event_id text primary key,
    noted_at timestamptz not null default now(),
    details  jsonb
);
create table if not exists seats (subscription text, owner text);
create table if not exists settings (name text primary key, value text);
insert into settings values ('currency', 'eur') on conflict do nothing;
create table if not exists grants (event_id text primary key, customer text not null);
create table if not exists credits (customer text primary key, credits int not null default 0);
create table if not exists failures (event_id text primary key, error text not null);
