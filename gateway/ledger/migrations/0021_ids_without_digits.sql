-- Ids of senders are random: of those of 14 characters every twelfth has no digit, and was a cause of its own.
-- What follows an underscore, is long, and changes from small letters to capitals is an id, too.
-- oldest code: 17

create or replace function gateway.common_error(error text) returns text
language sql immutable parallel safe
return regexp_replace(
    regexp_replace(
        error,
        '"[^"]*(?:"|$)|`[^`]*(?:`|$)|(?<!\w)''[^'']*(?:''(?!\w)|$)|[[:cntrl:]]+|'
        || '[[:alnum:]]+_(?=[[:alnum:]]{10})[[:alnum:]]*[[:lower:]][[:upper:]][[:alnum:]_-]*|'
        || case when error like '%HTTP %' then '(?<!HTTP |[[:alnum:]_-])' else '' end
        || '[[:alnum:]_-]*\d[[:alnum:]_-]*',
        '…', 'g'),
    '…(?:\W{0,2}…)+', '…', 'g');
