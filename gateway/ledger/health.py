"""The health of the ledger, at a cost that does not grow with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from asyncpg import Record

from gateway.ledger.connection import QUERIES, Connection, Pooled
from gateway.ledger.pauses import Pause, list_pauses
from gateway.ledger.reconciliations import last_runs

MOST_HANDLERS: Final = 200
MOST_COUNTED: Final = 10_000
ROWS: Final = 20_000
"""How many deliveries are counted per state, over all handlers. With many handlers the limit per
handler is lower."""

HOUR: Final = timedelta(hours=1)

HandlerKey = tuple[str, str]
"""Route and handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerBacklog:
    """The waiting and dead deliveries of one handler."""

    due: int = 0
    later: int = 0
    """Those that wait for a retry, and delayed jobs."""
    held: int = 0
    """Those that wait for an earlier delivery of their ordering key."""
    suspects: int = 0
    """Those among all these that run in isolation, because a worker was lost twice while they
    ran."""
    dead: int = 0
    dead_lately: int = 0
    """Those that died in the last hour."""
    oldest_due_at: datetime | None = None
    most: int = MOST_COUNTED
    """The counting limit. At this count there may be more."""

    @property
    def pending(self) -> int:
        return self.due + self.later + self.held


NO_BACKLOG: Final = HandlerBacklog()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """A worker that is alive."""

    id: str
    host: str
    pid: int
    version: str | None
    handlers: list[str]
    started_at: datetime
    seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHealth:
    """The ledger at one moment."""

    at: datetime
    backlogs: Mapping[HandlerKey, HandlerBacklog]
    running: Mapping[HandlerKey, int]
    unknown_effects: Mapping[HandlerKey, int]
    """Counted among the newest MOST_COUNTED of all handlers."""
    pauses: Sequence[Pause]
    workers: Sequence[WorkerState]
    gaps: Mapping[tuple[str, str], int]
    """Counts by route and status."""
    reconciles: Sequence[Mapping[str, Any]]
    """The last reconciliation of each route."""
    version: str
    """The version of Postgres."""
    connections: int
    max_connections: int
    schema_version: int
    unheard: int
    """Messages of alerts that could not be delivered."""

    def is_orphaned(self, key: HandlerKey) -> bool:
        """Whether deliveries of the handler wait, and none of the workers has it."""
        if not self.workers or not (self.backlog(key).pending or self.running.get(key)):
            return False
        return not any(" ".join(key) in worker.handlers for worker in self.workers)

    def backlog(self, key: HandlerKey) -> HandlerBacklog:
        return self.backlogs.get(key, NO_BACKLOG)


BY_INDEX: Final = (
    "set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off"
)
"""Bounded counts read rows in index order: a bitmap scan would first build the whole bitmap. The
settings are local, so that a pooler does not pass them on to another client."""


async def read_health(ledger: Connection | Pooled, lately: timedelta) -> LedgerHealth:
    """Read the health of the ledger, in milliseconds, however many events there are.

    `lately` is the maximum age of a live worker's heartbeat.
    """
    async with ledger.transaction(readonly=True):
        await ledger.execute(BY_INDEX)
        found = await ledger.fetch(QUERIES["find_unsettled"], MOST_HANDLERS)
        routes, handlers = [row["route"] for row in found], [row["handler"] for row in found]
        most = most_of(len(found))
        backlogs = await ledger.fetch(QUERIES["count_unsettled"], routes, handlers, most, HOUR)
        running = await ledger.fetch(QUERIES["count_running"], MOST_COUNTED)
        effects = await ledger.fetch(QUERIES["count_unknown_effects"], MOST_COUNTED)
        workers = await ledger.fetch(QUERIES["list_workers"], lately)
        gaps = await ledger.fetch(QUERIES["count_gaps"], MOST_COUNTED)
        [server] = await ledger.fetch(QUERIES["measure_server"])
        return LedgerHealth(
            backlogs={
                (route, handler): HandlerBacklog(**counts, most=most)
                for route, handler, counts in map(_split, backlogs)
            },
            running={(row["route"], row["handler"]): row["n"] for row in running},
            unknown_effects={(row["route"], row["handler"]): row["n"] for row in effects},
            pauses=await list_pauses(ledger),
            workers=[WorkerState(**{**row, "id": str(row["id"])}) for row in workers],
            gaps={(row["route"], row["status"]): row["n"] for row in gaps},
            reconciles=await last_runs(ledger),
            **server,
        )


def _split(row: Record) -> tuple[str, str, dict[str, Any]]:
    """Return the route, the handler and the other columns of a row."""
    columns = dict(row)
    return columns.pop("route"), columns.pop("handler"), columns


def most_of(handlers: int) -> int:
    """Return the counting limit per handler."""
    return min(ROWS // max(handlers, 1), MOST_COUNTED)
