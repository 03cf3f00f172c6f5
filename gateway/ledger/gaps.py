"""Events that a provider sent and the ledger has not seen, and what becomes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import orjson

from gateway.ledger.connection import Executor
from gateway.ledger.forgetting import forget_all
from gateway.ledger.queries import QUERIES

MOST_REASONS: Final = 20
MOST_SHOWN: Final = 100
BATCH: Final = 1_000

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What a provider's listing says of an event that the ledger has not seen."""

    event_id: str
    type: str
    handle: str
    """By what the provider can be asked for it."""
    handled_at: datetime
    """When it was delivered last, or happened."""
    occurred_at: datetime
    is_first: bool = True
    """Whether `occurred_at` is its first delivery, and not a later one."""
    recorded: str | None = None
    """What the provider says of its last delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A missing event, to be recovered now."""

    event_id: str
    handle: str


async def find_unseen(
    connection: Executor, route: str, event_ids: Sequence[str], refused_types: Sequence[str]
) -> set[str]:
    """Return the ids that the ledger has neither claimed nor refused as REPLAYED.

    A refusal counts as long as repeats of the type are refused (`refused_types`): under today's
    rule another delivery of a flagged type would be accepted.
    """
    rows = await connection.fetch(
        QUERIES["find_unseen"], route, list(event_ids), list(refused_types)
    )
    return {row["event_id"] for row in rows}


async def note_gaps(
    connection: Executor, route: str, run_id: int, missing: Sequence[Missing], *, again: bool
) -> None:
    """Notes what is missing; each event once. `again`: also what was given up before."""
    if missing:
        rows = orjson.dumps([asdict(gap) for gap in missing]).decode()
        await connection.execute(QUERIES["note_gaps"], route, run_id, rows, again)


async def adopt_gaps(connection: Executor, route: str, run_id: int) -> None:
    """A run goes on with what earlier ones left open."""
    await connection.execute(QUERIES["adopt_gaps"], route, run_id)


async def close_gaps(connection: Executor, run_id: int, refused_types: Sequence[str]) -> int:
    """Closes what has arrived by now; returns how many that were asked for have not."""
    left: int = await connection.fetchval(QUERIES["close_gaps"], run_id, list(refused_types))
    return left


async def give_up(connection: Executor, route: str, reasons: Mapping[str, str]) -> None:
    """Says of some events why they cannot be recovered."""
    if reasons:
        await connection.execute(
            QUERIES["give_up_gaps"], route, list(reasons), list(reasons.values())
        )


async def give_up_old(
    connection: Executor,
    run_id: int,
    *,
    asks: int,
    patience: timedelta,
    kept_since: datetime,
    known_since: datetime,
) -> None:
    """What was asked for so often without coming, or is older than provider or ledger know."""
    await connection.execute(
        QUERIES["give_up_old_gaps"], run_id, asks, patience, kept_since, known_since
    )


async def next_gaps(
    connection: Executor, run_id: int, *, pause: timedelta, until: datetime, limit: int
) -> list[Gap]:
    """What the run has to recover next, oldest first."""
    rows = await connection.fetch(QUERIES["next_gaps"], run_id, pause, until, limit)
    return [Gap(event_id=row["event_id"], handle=row["handle"]) for row in rows]


async def ask_gap(
    connection: Executor, route: str, run_id: int, event_id: str, refused_types: Sequence[str]
) -> bool:
    """Notes that it is asked for now; False where it has arrived meanwhile."""
    asks = await connection.fetchval(
        QUERIES["ask_gap"], route, event_id, run_id, list(refused_types)
    )
    return asks is not None


async def explain_gap(
    connection: Executor, route: str, event_id: str, reason: str, *, was_asked: bool
) -> None:
    """Why it was not recovered this time; `was_asked`: whether the order may have been heard."""
    await connection.execute(QUERIES["explain_gap"], route, event_id, reason, was_asked)


async def count_reasons(connection: Executor, run_id: int) -> list[Row]:
    """What the run could not recover, by reason."""
    return [dict(r) for r in await connection.fetch(QUERIES["count_reasons"], run_id, MOST_REASONS)]


async def list_gaps(connection: Executor, run_id: int) -> list[Row]:
    """What the run could not recover, oldest first: as many as a person looks at."""
    return [dict(r) for r in await connection.fetch(QUERIES["list_gaps"], run_id, MOST_SHOWN)]


async def forget_gaps(connection: Executor, age: timedelta) -> None:
    """Gaps that were closed long ago."""
    await forget_all(connection, "forget_gaps", age, BATCH)
