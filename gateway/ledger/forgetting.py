"""Removes old rows of a small table, in small steps, until there are no more."""

from datetime import timedelta

from gateway.ledger.connection import Executor
from gateway.ledger.queries import QUERIES


async def forget_all(connection: Executor, query: str, age: timedelta, batch: int) -> int:
    """How many rows were older than this; each step is a commit of its own."""
    total, step = 0, batch
    while step == batch:
        deleted = await connection.execute(QUERIES[query], age, batch)
        step = int(deleted.rpartition(" ")[2])
        total += step
    return total
