"""Counts of the whole ledger, at a cost that does not grow with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gateway.ledger.connection import QUERIES, Connection, Pooled
from gateway.ledger.pauses import list_pauses
from gateway.ledger.reconciliations import last_runs

MOST_HANDLERS: Final = 200
MOST_COUNTED: Final = 10_000
ROWS: Final = 20_000
"""How many deliveries are counted per state, over all handlers. With many handlers the limit per
handler is lower."""

HOUR: Final = timedelta(hours=1)

Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """The waiting and dead deliveries of one handler."""

    due: int
    later: int
    """Those that wait for a retry, and delayed jobs."""
    held: int
    """Those that wait for an earlier delivery of their ordering key."""
    suspects: int
    """Those among all these that run in isolation, because a worker was lost twice while they
    ran."""
    dead: int
    dead_lately: int
    """Those that died in the last hour."""
    oldest_due_at: datetime | None
    most: int
    """The counting limit. At this count there may be more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCounts:
    """The counts at one moment."""

    at: datetime
    unsettled: Mapping[Place, Unsettled]
    running: Mapping[Place, int]
    unknown_effects: Mapping[Place, int]
    """Counted among the newest MOST_COUNTED of all handlers."""
    paused: Sequence[Place]
    """For a paused route the handler is empty."""
    workers: int
    served: frozenset[Place]
    """Handlers that some worker has."""
    gaps: Mapping[tuple[str, str], int]
    """Counts by route and status."""
    reconciles: Mapping[str, str]
    """The status of the last reconciliation of each route."""
    connections: int
    max_connections: int
    schema_version: int
    unheard: int
    """Messages of alerts that could not be delivered."""


BY_INDEX: Final = (
    "set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off"
)
"""Bounded counts read rows in index order: a bitmap scan would first build the whole bitmap. The
settings are local, so that a pooler does not pass them on to another client."""


async def read_figures(ledger: Connection, lately: timedelta) -> LedgerCounts:
    """Read the counts, in milliseconds, however many events there are.

    `lately` is the maximum age of a live worker's heartbeat.
    """
    async with ledger.transaction(readonly=True):
        unsettled, running = await read_unsettled(ledger)
        pauses = await list_pauses(ledger)
        workers = await ledger.fetch(QUERIES["list_workers"], lately)
        gaps = await ledger.fetch(QUERIES["count_gaps"], MOST_COUNTED)
        reconciles = await last_runs(ledger)
        [server] = await ledger.fetch(QUERIES["measure_server"])
        return LedgerCounts(
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
    """Return the waiting and dead deliveries, and the running ones.

    Call it in a transaction, which uses only index scans from here on.
    """
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
    """Count effects with an unknown outcome by handler, among the newest MOST_COUNTED."""
    rows = await ledger.fetch(QUERIES["count_unknown_effects"], MOST_COUNTED)
    return {(row["route"], row["handler"]): row["n"] for row in rows}


def most_of(handlers: int) -> int:
    """Return the counting limit per handler."""
    return min(ROWS // max(handlers, 1), MOST_COUNTED)


def _place(name: str) -> Place:
    route, _, handler = name.partition(" ")
    return route, handler
