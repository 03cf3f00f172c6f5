"""What the ledger and the user's own tables say when everything is over."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.ledger.connection import Connection

PLANNED: Final = "Planned:%"
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
RUNS: Final = "select event_id, runs from gateway.deliveries where handler like '%.called'"
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
    tallies: int
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
    runs: Mapping[str, int] = field(default_factory=dict)
    """How often an event ran that makes a call."""
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
        tallies=await connection.fetchval("select sum(n)::bigint from public.tallies"),
        deliveries=await _deliveries(connection),
        outcomes={row["outcome"]: row["n"] for row in outcomes},
        leases_taken_back=await _attempts(connection, "lost", "error like 'WORKER_LOST%'"),
        handler_timeouts=await _attempts(connection, "retry", f"error like '{TIMEOUT}'"),
        attempts_burned=await _attempts(
            connection, "retry", f"error not like '{PLANNED}' and error not like '{TIMEOUT}'"
        ),
        spooled_ids=frozenset(await _column(connection, SPOOLED_IDS)),
        ordered=await _column(connection, ORDERED),
        runs={row["event_id"]: row["runs"] for row in await connection.fetch(RUNS)},
        most_at_once=await connection.fetchval(MOST_AT_ONCE),
        starts={row["route"]: row["at"] for row in await connection.fetch(STARTS)},
    )


async def _column(connection: Connection, query: str) -> list[str]:
    return [row[0] for row in await connection.fetch(query)]


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
