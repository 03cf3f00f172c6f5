"""What the ledger and the user's own tables say when everything is over."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.ledger.connection import Connection
from tests.torture.calls import Caller

CALL_ERRORS: Final = "HTTPStatusError|ReadTimeout|ReadError|RemoteProtocolError|ConnectTimeout"
PLANNED: Final = rf"^(Planned|{CALL_ERRORS})\M"
"""Failures on purpose: of handlers, and of calls that the callee refuses, fails or breaks."""
TIMEOUT: Final = "TIMEOUT:%"
SPOOLED_IDS: Final = "select event_id from gateway.processed_events where spooled"
DELIVERIES: Final = """
    select event_id, split_part(handler, '.', 3) as handler, status::text, attempts, error,
        coalesce(extract(epoch from nullif(due_at, 'infinity') - clock_timestamp()), 'infinity')
            ::float8 as due_in_s,
        case when runs > 1 then (
            select string_agg(
                format(
                    '%s at %s s',
                    a.outcome, round(extract(epoch from a.finished_at - d.created_at), 1)
                ), ', ' order by a.number
            ) from gateway.attempts a where a.delivery_id = d.id
        ) end as history
    from gateway.deliveries d order by id
"""
ORDERED: Final = "select event_id from public.effects where handler = 'ordered' order by n"
CALLERS: Final = """
    select d.event_id, d.status::text, d.runs, g.because as gone_on, case
        when d.handler like '%.charged'
        then d.route || '.' || (convert_from(p.body, 'utf8')::json #>> '{work,subject}')
        else d.event_id
    end as subject, exists (
        select from gateway.attempts a
        where a.delivery_id = d.id
          and (a.outcome in ('lost', 'released') or a.error like 'TIMEOUT:%')
    ) as is_interrupted
    from gateway.deliveries d
    join gateway.processed_events e using (route, event_id)
    join gateway.payloads p on p.id = e.payload_id and p.until = e.payload_until
    left join public.gone_on g on g.event_id = d.event_id
    where d.handler like any (array['%.called', '%.charged'])
"""
HIDDEN: Final = """
    select d.event_id from gateway.effects e join gateway.deliveries d on d.id = e.delivery_id
    where d.status = 'done' and e.status = 'begun' and e.made_by is null
"""
SINGLES: Final = """
    select route || ' ' || subject as once, count(*) as n from public.singles group by 1
"""
RETRIES: Final = """
    select event_id, count(*) as n from gateway.audit where action = 'retry effect' group by 1
"""
COMPLETIONS: Final = """
    select event_id, count(*) as n from public.effects where handler in ('called', 'charged')
    group by 1
"""
MOST_AT_ONCE: Final = """
    select coalesce(max(n), 0) from (
        select sum(step) over (partition by route order by at, step) as n
        from spans cross join lateral (values (began_at, 1), (ended_at, -1)) as ends (at, step)
    ) as levels
"""
STARTS: Final = """
    select d.route, array_agg(extract(epoch from a.started_at)::float8 order by a.started_at) as at
    from gateway.attempts a join gateway.deliveries d on d.id = a.delivery_id
    where d.handler like '%.paced' group by d.route
"""
UNFINISHED: Final = "select count(*) from gateway.deliveries where status in ('pending', 'running')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One row of the ledger."""

    event_id: str
    handler: str
    status: str
    attempts: int
    error: str | None
    due_in_s: float
    """Until it falls due, by the clock of Postgres."""
    history: str | None = None
    """Its runs, where there were several: how each ended, and when, since it was claimed."""

    def __str__(self) -> str:
        due = f", due in {self.due_in_s:.0f} s" if self.status == "pending" else ""
        history = f" ({self.history})" if self.history else ""
        error = f", {self.error[:60]}" if self.error else ""
        return f"{self.handler} {self.status}, {self.attempts} attempts{due}{history}{error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The second and the third list, and what is known beside them."""

    claimed: dict[str, str]
    """Events in the ledger, and their routes."""
    effects: Counter[tuple[str, str]]
    """By event and handler."""
    stats: int
    """The sum of what the second handler counted."""
    deliveries: dict[str, list[Delivery]]
    outcomes: dict[str, int] = field(default_factory=dict)
    """How runs ended."""
    leases_taken_back: int = 0
    handler_timeouts: int = 0
    attempts_burned: int = 0
    """Attempts that ended in a retry though no failure was planned, time-outs apart."""
    spooled_ids: frozenset[str] = frozenset()
    ordered: Sequence[str] = ()
    """Events whose handler has an order, as their effects came."""
    callers: Sequence[Caller] = ()
    """Deliveries that make a call."""
    hidden: Sequence[str] = ()
    """Events with a completed delivery whose effect is neither done nor unknown."""
    renamed: int = 0
    """Effects of handlers under their new names."""
    singles: Mapping[str, int] = field(default_factory=dict)
    """Effects by key, of the handler that acts once per key."""
    most_at_once: int = 0
    """Runs of the handler that has a concurrency, on one route."""
    starts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By the route: when runs of the handler with a rate started, by the clock of Postgres."""


async def gather(connection: Connection) -> Evidence:
    """Reads all of it."""
    claimed = await connection.fetch(
        "select route, event_id from gateway.processed_events where provider <> 'publish'"
    )
    effects = await connection.fetch(
        "select event_id, handler, count(*) as n from public.effects group by event_id, handler"
    )
    outcomes = await connection.fetch(
        "select outcome, count(*) as n from gateway.attempts group by outcome order by outcome"
    )
    return Evidence(
        claimed={row["event_id"]: row["route"] for row in claimed},
        effects=Counter({(row["event_id"], row["handler"]): row["n"] for row in effects}),
        stats=await connection.fetchval("select sum(n)::bigint from public.tallies"),
        deliveries=await _deliveries(connection),
        outcomes={row["outcome"]: row["n"] for row in outcomes},
        leases_taken_back=await _attempts(connection, "lost", "error like 'WORKER_LOST%'"),
        handler_timeouts=await _attempts(connection, "retry", f"error like '{TIMEOUT}'"),
        attempts_burned=await _attempts(
            connection, "retry", f"error !~ '{PLANNED}' and error not like '{TIMEOUT}'"
        ),
        spooled_ids=frozenset(await _column(connection, SPOOLED_IDS)),
        ordered=await _column(connection, ORDERED),
        callers=[Caller(**dict(row)) for row in await connection.fetch(CALLERS)],
        hidden=await _column(connection, HIDDEN),
        renamed=await connection.fetchval("select count(*) from public.effects where renamed"),
        singles=await _counts(connection, SINGLES),
        most_at_once=await connection.fetchval(MOST_AT_ONCE),
        starts={row["route"]: row["at"] for row in await connection.fetch(STARTS)},
    )


async def _column(connection: Connection, query: str) -> list[str]:
    return [row[0] for row in await connection.fetch(query)]


async def _counts(connection: Connection, query: str) -> dict[str, int]:
    return {row[0]: row[1] for row in await connection.fetch(query)}


async def count_retries(connection: Connection) -> dict[str, int]:
    """By event: how often a retry of its effect was ordered."""
    return await _counts(connection, RETRIES)


async def count_completions(connection: Connection) -> dict[str, int]:
    """By event: how often a run of a handler that makes a call has committed."""
    return await _counts(connection, COMPLETIONS)


async def unfinished(connection: Connection) -> int:
    """Deliveries that wait or run."""
    n: int = await connection.fetchval(UNFINISHED)
    return n


async def _deliveries(connection: Connection) -> dict[str, list[Delivery]]:
    found: dict[str, list[Delivery]] = {}
    for row in await connection.fetch(DELIVERIES):
        found.setdefault(row["event_id"], []).append(Delivery(**dict(row)))
    return found


async def _attempts(connection: Connection, outcome: str, condition: str) -> int:
    n: int = await connection.fetchval(
        f"select count(*) from gateway.attempts where outcome = $1 and {condition}",  # noqa: S608
        outcome,
    )
    return n
