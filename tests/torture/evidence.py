"""What the ledger and the user's own tables say when everything is over."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from gateway.ledger.connection import Connection

PLANNED: Final = "Planned:%"
TIMEOUT: Final = "TIMEOUT:%"
SPOOLED: Final = """
    select true from information_schema.columns
    where table_schema = 'gateway' and table_name = 'processed_events' and column_name = 'spooled'
"""
DELIVERIES: Final = """
    select event_id, split_part(handler, '.', 3) as handler, status::text, attempts, error,
        extract(epoch from due_at - clock_timestamp())::float8 as due_in_s,
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
    spooled: int | None = None
    """None where the ledger does not tell."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """How runs ended."""
    leases_taken_back: int = 0
    handler_timeouts: int = 0
    attempts_burned: int = 0
    """Attempts that ended in a retry though no failure was planned, time-outs apart."""


async def gather(connection: Connection) -> Evidence:
    """Reads all of it."""
    claimed = await connection.fetch("select route, event_id from gateway.processed_events")
    effects = await connection.fetch(
        "select event_id, handler, count(*) as n from effects group by event_id, handler"
    )
    outcomes = await connection.fetch(
        "select outcome, count(*) as n from gateway.attempts group by outcome order by outcome"
    )
    return Evidence(
        claimed={row["event_id"]: row["route"] for row in claimed},
        effects=Counter({(row["event_id"], row["handler"]): row["n"] for row in effects}),
        tallies=await connection.fetchval("select sum(n)::bigint from tallies"),
        deliveries=await _deliveries(connection),
        spooled=await _spooled(connection),
        outcomes={row["outcome"]: row["n"] for row in outcomes},
        leases_taken_back=await _attempts(connection, "lost", "error like 'WORKER_LOST%'"),
        handler_timeouts=await _attempts(connection, "retry", f"error like '{TIMEOUT}'"),
        attempts_burned=await _attempts(
            connection, "retry", f"error not like '{PLANNED}' and error not like '{TIMEOUT}'"
        ),
    )


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


async def _spooled(connection: Connection) -> int | None:
    if not await connection.fetchval(SPOOLED):
        return None
    n: int = await connection.fetchval(
        "select count(*) from gateway.processed_events where spooled"
    )
    return n
