"""Figures of the whole ledger, at a cost that does not grow with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gateway.ledger.connection import Connection
from gateway.ledger.pauses import list_pauses
from gateway.ledger.queries import QUERIES
from gateway.ledger.reconciliations import last_runs

MOST_HANDLERS: Final = 200
MOST_COUNTED: Final = 10_000
FEWEST_COUNTED: Final = 1_000
ROWS: Final = 50_000
"""How many rows a reading counts in all, about: with many handlers fewer of each."""

Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """The deliveries of one handler that wait, or are dead."""

    due: int
    later: int
    """For a retry, or a delayed job."""
    held: int
    """Until it is their turn."""
    dead: int
    oldest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """As they were at one moment."""

    unsettled: Mapping[Place, Unsettled]
    running: Mapping[Place, int]
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
        await ledger.execute(BY_INDEX)
        return await _read(ledger, lately)


async def _read(ledger: Connection, lately: timedelta) -> Figures:
    unsettled = await _read_unsettled(ledger)
    running = await ledger.fetch(QUERIES["count_running"], MOST_COUNTED)
    pauses = await list_pauses(ledger)
    workers = await ledger.fetch(QUERIES["list_workers"], lately)
    gaps = await ledger.fetch(QUERIES["count_gaps"], MOST_COUNTED)
    reconciles = await last_runs(ledger)
    [server] = await ledger.fetch(QUERIES["measure_server"])
    return Figures(
        unsettled=unsettled,
        running={(row["route"], row["handler"]): row["n"] for row in running},
        paused=[(pause.route, pause.handler or "") for pause in pauses][:MOST_HANDLERS],
        workers=len(workers),
        served=frozenset(_place(name) for row in workers for name in row["handlers"]),
        gaps={(row["route"], row["status"]): row["n"] for row in gaps},
        reconciles={row["route"]: row["status"] for row in reconciles},
        **server,
    )


async def _read_unsettled(ledger: Connection) -> dict[Place, Unsettled]:
    found = await ledger.fetch(QUERIES["find_unsettled"], MOST_HANDLERS)
    routes, handlers = [row["route"] for row in found], [row["handler"] for row in found]
    rows = await ledger.fetch(QUERIES["count_unsettled"], routes, handlers, most_of(len(found)))
    return {
        (row["route"], row["handler"]): Unsettled(
            due=row["due"],
            later=row["later"],
            held=row["held"],
            dead=row["dead"],
            oldest_s=row["oldest_s"],
        )
        for row in rows
    }


def most_of(handlers: int) -> int:
    """Up to how many deliveries of each are counted."""
    return min(max(ROWS // max(handlers, 1), FEWEST_COUNTED), MOST_COUNTED)


def _place(name: str) -> Place:
    route, _, handler = name.partition(" ")
    return route, handler
