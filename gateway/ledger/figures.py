"""Figures of the whole ledger, at a cost that does not grow with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gateway.ledger.connection import Connection, Pooled
from gateway.ledger.pauses import list_pauses
from gateway.ledger.queries import QUERIES
from gateway.ledger.reconciliations import last_runs

MOST_HANDLERS: Final = 200
MOST_COUNTED: Final = 10_000
ROWS: Final = 20_000
"""How many deliveries a reading counts of each state, in all: with many handlers fewer of each."""

HOUR: Final = timedelta(hours=1)

Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """The deliveries of one handler that wait, or are dead."""

    due: int
    later: int
    """For a retry, or a delayed job."""
    held: int
    """Until it is their turn."""
    suspects: int
    """Of all these: those that run alone, since a worker was lost twice while they ran."""
    dead: int
    dead_lately: int
    """Of the last hour."""
    oldest_due_at: datetime | None
    most: int
    """Up to how many of each were counted: where it is so many, there may be more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """As they were at one moment."""

    at: datetime
    unsettled: Mapping[Place, Unsettled]
    running: Mapping[Place, int]
    unknown_effects: Mapping[Place, int]
    """Of the newest MOST_COUNTED in all."""
    paused: Sequence[Place]
    """A whole route has no handler."""
    workers: int
    served: frozenset[Place]
    """Handlers that some worker has."""
    gaps: Mapping[tuple[str, str], int]
    """By route and status."""
    reconciles: Mapping[str, str]
    """How the last one of each route ended."""
    connections: int
    max_connections: int
    schema_version: int
    unheard: int
    """Messages of alerts that did not get through."""


BY_INDEX: Final = (
    "set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off"
)
"""What is counted up to a bound is read in the order of an index: a bitmap is made of all of it
first. Local, so that a pooler gives it to nobody else."""


async def read_figures(ledger: Connection, lately: timedelta) -> Figures:
    """Takes milliseconds, however many events there are. `lately`: when a live worker was seen."""
    async with ledger.transaction(readonly=True):
        unsettled, running = await read_unsettled(ledger)
        pauses = await list_pauses(ledger)
        workers = await ledger.fetch(QUERIES["list_workers"], lately)
        gaps = await ledger.fetch(QUERIES["count_gaps"], MOST_COUNTED)
        reconciles = await last_runs(ledger)
        [server] = await ledger.fetch(QUERIES["measure_server"])
        return Figures(
            unsettled=unsettled,
            running=running,
            unknown_effects=await count_unknown_effects(ledger),
            paused=[(pause.route, pause.handler or "") for pause in pauses][:MOST_HANDLERS],
            workers=len(workers),
            served=frozenset(_place(name) for row in workers for name in row["handlers"]),
            gaps={(row["route"], row["status"]): row["n"] for row in gaps},
            reconciles={row["route"]: row["status"] for row in reconciles},
            **server,
        )


async def read_unsettled(
    ledger: Connection | Pooled,
) -> tuple[dict[Place, Unsettled], dict[Place, int]]:
    """What waits or is dead, and what runs. In a transaction, which goes by index from here on."""
    await ledger.execute(BY_INDEX)
    found = await ledger.fetch(QUERIES["find_unsettled"], MOST_HANDLERS)
    routes, handlers = [row["route"] for row in found], [row["handler"] for row in found]
    most = most_of(len(found))
    rows = await ledger.fetch(QUERIES["count_unsettled"], routes, handlers, most, HOUR)
    running = await ledger.fetch(QUERIES["count_running"], MOST_COUNTED)
    return (
        {
            (row["route"], row["handler"]): Unsettled(
                due=row["due"],
                later=row["later"],
                held=row["held"],
                suspects=row["suspects"],
                dead=row["dead"],
                dead_lately=row["dead_lately"],
                oldest_due_at=row["oldest_due_at"],
                most=most,
            )
            for row in rows
        },
        {(row["route"], row["handler"]): row["n"] for row in running},
    )


async def count_unknown_effects(ledger: Connection | Pooled) -> dict[Place, int]:
    """Count effects of unknown outcome by handler, the newest MOST_COUNTED."""
    rows = await ledger.fetch(QUERIES["count_unknown_effects"], MOST_COUNTED)
    return {(row["route"], row["handler"]): row["n"] for row in rows}


def most_of(handlers: int) -> int:
    """Up to how many deliveries of each are counted."""
    return min(ROWS // max(handlers, 1), MOST_COUNTED)


def _place(name: str) -> Place:
    route, _, handler = name.partition(" ")
    return route, handler
