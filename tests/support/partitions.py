"""Time that goes by for tables by the day."""

from typing import Final

from tests.support.ledger import Reader

LATER: Final = """
do $$
declare p record; moved date;
begin
    for p in select * from gateway.partitions order by day loop
        moved := p.day - $days;
        execute format('alter table gateway.%I detach partition gateway.%I', p.parent, p.name);
        execute format('update gateway.%I set until = until - $days', p.name);
        execute format('alter table gateway.%I rename to %I', p.name,
                       'moved_' || p.parent || to_char(moved, '"_"YYYYMMDD'));
    end loop;
    for p in select relname as name, substr(relname, 7, 8) as parent,
                    to_date(right(relname, 8), 'YYYYMMDD') as day
             from pg_class where relname ~ '^moved_(payloads|attempts)_[0-9]{8}$' loop
        execute format('alter table gateway.%I rename to %I', p.name, substr(p.name, 7));
        execute format('alter table gateway.%I attach partition gateway.%I'
                       ' for values from (%L) to (%L)',
                       p.parent, substr(p.name, 7), p.day, p.day + 1);
    end loop;
    update gateway.processed_events
    set payload_until = payload_until - $days, received_at = received_at - interval '$days days';
    update gateway.deliveries
    set created_at = created_at - interval '$days days',
        finished_at = finished_at - interval '$days days';
end
$$
"""
"""All of the past so many days longer ago: as if time had gone by and nobody had looked."""


async def let_pass(ledger: Reader, days: int) -> None:
    """Move everything that is stored `days` into the past.

    A payload that is kept for 14 days is due after 16: its day is the 15th
    from now, and the 16th if now is the last hour of a day (UTC).
    """
    await ledger.run(LATER.replace("$days", str(days)))
