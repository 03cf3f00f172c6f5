-- An effect can be once per key (`ctx.once(..., per=...)`): of all events of one thing, the delivery that has reserved the key
-- makes the call, and the others take its result.
-- oldest code: 29

alter table gateway.effects
    add column key text,
    add column made_by bigint;
comment on column gateway.effects.key is
    'Of an effect that is once per key: that key, with which its name ends; on an encrypted route a digest.';
comment on column gateway.effects.made_by is
    'The delivery of another event with the same key that made the call. Not done: that one has it, and its row says how it stands.';
create index effects_made_by on gateway.effects (made_by) where made_by is not null;

comment on table gateway.once_keys is
    'Which delivery acts, if a handler acts once per key; of an effect that is once per key, which delivery has it.';
