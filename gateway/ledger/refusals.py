"""Delivery ids that were refused as REPLAYED: reconcile need not ask for them."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from gateway.ledger.connection import Executor
from gateway.ledger.forgetting import forget_all
from gateway.ledger.queries import QUERIES

MOST_PER_BODY: Final = 100
"""A body that was captured can be sent under any number of made-up ids."""

BATCH: Final = 1_000


class Refusal(NamedTuple):
    """One id, and the digest of the bytes that came under it."""

    route: str
    event_id: str
    digest: bytes


async def note_refusals(connection: Executor, refused: Sequence[Refusal]) -> None:
    """Remembers them, as many of each body as there may be."""
    columns = [list(column) for column in zip(*refused, strict=True)]
    await connection.execute(QUERIES["note_refusals"], *columns, MOST_PER_BODY)


async def forget_refusals(connection: Executor, age: timedelta) -> None:
    """Those older than any key."""
    await forget_all(connection, "forget_refusals", age, BATCH)
