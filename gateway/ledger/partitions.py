"""Tables by the day for what is large: made ahead, and dropped when their day has come.

A payload is filed under the day from which it may be forgotten, and so is an attempt. When that day
has come, what is wanted for longer is filed under a later one, in small steps; then the table is
dropped, whatever is in it.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

import asyncpg
import structlog

from gateway.failpoints import reached
from gateway.ledger.connection import Connection, Executor, Pooled, describe
from gateway.ledger.queries import QUERIES
from gateway.model import Retention

BATCH: Final = 200
FIND_WITHIN_S: Final = 120.0
"""A look at everything that waits, is dead or ended late: some seconds for a million."""

LOOK_AGAIN_S: Final = 0.1
"""Whoever holds a table this much later is no claim and no lease. He is not waited for: whoever
waits for a table that is to be dropped has everybody else wait behind him."""

MOST_DROPPED: Final = 200
UNHURRIED: Final = 25 * 1024**2
"""How many bytes a second are given back to the disk by who is in no hurry: while a file is, for up
to a tenth of a second for each half a GB, a claim waits for the disk. At this pace not one in a
hundred does."""

MAKE_EVERY: Final = timedelta(hours=1)
FORGET_MISFILED: Final = {
    "payloads": "forget_misfiled_payloads",
    "attempts": "forget_misfiled_attempts",
}

log = structlog.get_logger("gateway.partitions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tended:
    """What was done to the tables of days."""

    made: int = 0
    refiled: int = 0
    dropped: int = 0
    waiting: int = 0
    """Tables that are to be dropped, and are in use."""
    rested_s: float = 0


async def keep_retention(ledger: Executor, retention: Mapping[str, Retention]) -> None:
    """Tells the ledger for how long each route keeps what it has."""
    kept = retention.values()
    await ledger.execute(
        QUERIES["keep_retention"], list(retention), [k.key for k in kept], [k.payload for k in kept]
    )


async def make_partitions(ledger: Executor) -> int:
    """Makes tables for the days to come; where somebody is in the way, another time."""
    try:
        made: int = await ledger.fetchval(QUERIES["make_partitions"])
    except (asyncpg.LockNotAvailableError, asyncpg.CheckViolationError) as error:
        log.warning("partitions_not_made", error=describe(error))
        return 0
    return made


async def prepare(ledger: Executor, retention: Mapping[str, Retention]) -> int:
    """After a migration, before anything is claimed: returns how many tables were made."""
    await keep_retention(ledger, retention)
    return await make_partitions(ledger)


class DaysAhead:
    """Makes tables for the days to come, once in a while."""

    def __init__(self) -> None:
        self._made_at = -MAKE_EVERY.total_seconds()

    async def flush(self, ledger: Executor) -> None:
        if time.monotonic() - self._made_at >= MAKE_EVERY.total_seconds():
            await make_partitions(ledger)
            self._made_at = time.monotonic()


async def count_due(ledger: Executor) -> int:
    """How many tables have had their day."""
    return len(await ledger.fetch(QUERIES["list_due_partitions"]))


async def tend(
    connection: Connection | Pooled,
    retention: Mapping[str, Retention],
    *,
    most: int = MOST_DROPPED,
    bytes_per_s: float = math.inf,
) -> Tended:
    """Makes what will be needed, and drops what has had its day: the oldest, at most so many, with
    a rest after each that keeps to the pace.

    Two at once do no harm: what one has filed anew the other does not find, and what one has
    dropped is gone.
    """
    made = await prepare(connection, retention)
    refiled = await _put_in_order(connection)
    due = await connection.fetch(QUERIES["list_due_partitions"])
    if due:
        refiled += await _refile_wanted(connection)
    dropped, rested_s = 0, 0.0
    for row in due[:most]:
        forget = _forget_misfiled if row["is_misfiled"] else _drop
        if await forget(connection, row["parent"], row["day"]):
            dropped += 1
            rest_s = row["bytes"] / bytes_per_s
            await asyncio.sleep(rest_s)
            rested_s += rest_s
    waiting = await count_due(connection) if due else 0
    return Tended(made=made, refiled=refiled, dropped=dropped, waiting=waiting, rested_s=rested_s)


async def _put_in_order(connection: Connection | Pooled) -> int:
    """What was filed under a day that had no table yet."""
    refiled = await _refile(connection, "find_misfiled", "refile_payloads")
    refiled += await _refile(connection, "find_misfiled_attempts", "refile_attempts")
    return refiled


async def _refile_wanted(connection: Connection | Pooled) -> int:
    """What is wanted for longer than it was filed for: all of it, since then its table is dropped.
    Whoever else moves the same may only have begun."""
    refiled = await _refile(connection, "find_wanted_payloads", "refile_payloads", all_of_it=True)
    refiled += await _refile(connection, "find_longer_kept", "refile_payloads", all_of_it=True)
    refiled += await _refile(connection, "find_wanted_attempts", "refile_attempts", all_of_it=True)
    reached("partition.refiled")
    return refiled


async def _refile(
    connection: Connection | Pooled, find: str, refile: str, *, all_of_it: bool = False
) -> int:
    """Each step a commit of its own. A step that moves nothing, since somebody else moves the same,
    is the last one but where all has to be moved."""
    total = 0
    while True:
        async with connection.transaction():
            await connection.execute("set local enable_seqscan = off; set local jit = off")
            rows = await connection.fetch(QUERIES[find], BATCH, timeout=FIND_WITHIN_S)
            if not rows:
                return total
            columns = zip(*(tuple(row) for row in rows), strict=True)
            done = await connection.execute(QUERIES[refile], *(list(c) for c in columns))
        reached("partition.step")
        moved = int(done.rpartition(" ")[2])
        total += moved
        if len(rows) < BATCH or not (moved or all_of_it):
            return total


async def _forget_misfiled(connection: Connection | Pooled, parent: str, until: date) -> bool:
    """Row by row, in steps: what was filed under days that had no table. Not of a day that has come
    only now: nobody has looked yet what of it is wanted."""
    forgotten = BATCH
    while forgotten:
        done = await connection.execute(QUERIES[FORGET_MISFILED[parent]], BATCH, until)
        forgotten = int(done.rpartition(" ")[2])
    return True


async def _drop(connection: Connection | Pooled, parent: str, day: date) -> bool:
    name = f"{parent}_{day:%Y%m%d}"
    if await _is_in_use(connection, [parent, f"{parent}_default", name]):
        log.info("partition_in_use", table=name)
        return False
    try:
        async with connection.transaction():  # lost in a crash, it is simply done again
            await connection.execute("set local synchronous_commit = off")
            await connection.execute(QUERIES["detach_partition"], parent, day)
        reached("partition.detached")
        dropped: bool = await connection.fetchval(QUERIES["drop_partition"], parent, day)
    except asyncpg.LockNotAvailableError as error:
        log.info("partition_in_use", table=name, error=describe(error))
        return False
    except asyncpg.UndefinedTableError:  # another was faster, and has it
        return False
    reached("partition.dropped")
    if dropped:
        log.info("partition_dropped", table=name)
    return dropped


async def _is_in_use(connection: Connection | Pooled, tables: list[str]) -> bool:
    """Whether the same transaction holds one of them for longer than a moment."""
    before = {tuple(row) for row in await connection.fetch(QUERIES["find_holders"], tables)}
    if not before:
        return False
    await asyncio.sleep(LOOK_AGAIN_S)
    after = {tuple(row) for row in await connection.fetch(QUERIES["find_holders"], tables)}
    return bool(before & after)
