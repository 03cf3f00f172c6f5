"""Daily partitions for large tables: created ahead, and dropped when they have expired.

A payload is filed under the day from which it may be deleted, and so is an attempt. When that day
has come, rows that are needed for longer are moved to a later day, in small steps. Then the table
is dropped with everything that is left in it.
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

from gateway.base.failpoints import reached
from gateway.base.model import Retention
from gateway.ledger.connection import QUERIES, Connection, Executor, Pooled, describe

BATCH: Final = 200
FIND_WITHIN_S: Final = 120.0
"""The timeout of a query over all deliveries that wait, are dead or ended late. For a million it
takes some seconds."""

LOOK_AGAIN_S: Final = 0.1
"""A transaction that still holds a table after this time is neither a claim nor a lease. The drop
does not wait for it: every other user of the table would queue behind the waiting drop."""

MOST_DROPPED: Final = 200
UNHURRIED: Final = 25 * 1024**2
"""How many bytes per second a background task returns to the disk. While a file is deleted, which
takes up to a tenth of a second per half a GB, a claim waits for the disk. At this rate not one
claim in a hundred does."""

MAKE_EVERY: Final = timedelta(hours=1)
FORGET_MISFILED: Final = {
    "payloads": "forget_misfiled_payloads",
    "attempts": "forget_misfiled_attempts",
}

log = structlog.get_logger("gateway.partitions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tended:
    """The work done on daily partitions."""

    made: int = 0
    refiled: int = 0
    dropped: int = 0
    waiting: int = 0
    """Tables that are to be dropped, but are in use."""
    rested_s: float = 0


async def keep_retention(ledger: Executor, retention: Mapping[str, Retention]) -> None:
    """Store the retention of each route in the ledger."""
    kept = retention.values()
    await ledger.execute(
        QUERIES["keep_retention"], list(retention), [k.key for k in kept], [k.payload for k in kept]
    )


async def make_partitions(ledger: Executor) -> int:
    """Create partitions for the next days. If a lock is not available, log it and do nothing."""
    try:
        made: int = await ledger.fetchval(QUERIES["make_partitions"])
    except (asyncpg.LockNotAvailableError, asyncpg.CheckViolationError) as error:
        log.warning("partitions_not_made", error=describe(error))
        return 0
    return made


async def prepare(ledger: Executor, retention: Mapping[str, Retention]) -> int:
    """Store the retention and create partitions, after a migration and before anything is claimed.

    Returns the number of tables that were created.
    """
    await keep_retention(ledger, retention)
    return await make_partitions(ledger)


class DaysAhead:
    """Creates partitions for the next days, once in a while."""

    def __init__(self) -> None:
        self._made_at = -MAKE_EVERY.total_seconds()

    async def flush(self, ledger: Executor) -> None:
        if time.monotonic() - self._made_at >= MAKE_EVERY.total_seconds():
            await make_partitions(ledger)
            self._made_at = time.monotonic()


async def count_due(ledger: Executor) -> int:
    """Return the number of expired tables."""
    return len(await ledger.fetch(QUERIES["list_due_partitions"]))


async def tend(
    connection: Connection | Pooled,
    retention: Mapping[str, Retention],
    *,
    most: int = MOST_DROPPED,
    bytes_per_s: float = math.inf,
) -> Tended:
    """Create the partitions that will be needed, and drop the oldest expired ones.

    At most `most` tables are dropped, with a pause after each that keeps to `bytes_per_s`.

    Concurrent calls do no harm: rows that one call has moved are not found by the other, and tables
    that one has dropped are gone.
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
    """Move rows that were filed under a day that had no table yet."""
    refiled = await _refile(connection, "find_misfiled", "refile_payloads")
    refiled += await _refile(connection, "find_misfiled_attempts", "refile_attempts")
    return refiled


async def _refile_wanted(connection: Connection | Pooled) -> int:
    """Move all rows that are needed for longer than they were filed for.

    It must move all of them, because their table is dropped afterwards, and a concurrent call that
    moves the same rows may only have begun.
    """
    refiled = await _refile(connection, "find_wanted_payloads", "refile_payloads", all_of_it=True)
    refiled += await _refile(connection, "find_longer_kept", "refile_payloads", all_of_it=True)
    refiled += await _refile(connection, "find_wanted_attempts", "refile_attempts", all_of_it=True)
    reached("partition.refiled")
    return refiled


async def _refile(
    connection: Connection | Pooled, find: str, refile: str, *, all_of_it: bool = False
) -> int:
    """Move rows in steps, each a commit of its own.

    A step that moves nothing, because a concurrent call moves the same rows, is the last one,
    unless all rows have to be moved.
    """
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
    """Delete rows that were filed under days without a table, row by row and in steps.

    Days that have expired only now are left out, because their rows were not yet checked.
    """
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
        async with connection.transaction():  # if a crash loses it, it is simply done again
            await connection.execute("set local synchronous_commit = off")
            await connection.execute(QUERIES["detach_partition"], parent, day)
        reached("partition.detached")
        dropped: bool = await connection.fetchval(QUERIES["drop_partition"], parent, day)
    except asyncpg.LockNotAvailableError as error:
        log.info("partition_in_use", table=name, error=describe(error))
        return False
    except asyncpg.UndefinedTableError:  # another call was faster, and drops it
        return False
    reached("partition.dropped")
    if dropped:
        log.info("partition_dropped", table=name)
    return dropped


async def _is_in_use(connection: Connection | Pooled, tables: list[str]) -> bool:
    """Return whether the same transaction holds one of the tables for longer than a moment."""
    before = {tuple(row) for row in await connection.fetch(QUERIES["find_holders"], tables)}
    if not before:
        return False
    await asyncio.sleep(LOOK_AGAIN_S)
    after = {tuple(row) for row in await connection.fetch(QUERIES["find_holders"], tables)}
    return bool(before & after)
