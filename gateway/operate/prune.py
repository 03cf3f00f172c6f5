"""Applies the routes' retention on a person's order, piece by piece."""

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from gateway.ledger.connection import Connection, Executor, Pooled
from gateway.ledger.partitions import count_due, tend
from gateway.ledger.retention import (
    Place,
    Pruned,
    Pruner,
    count_expired,
    count_prunable,
    list_routes,
)
from gateway.model import Retention

PIECE_S: Final = 2.0
"""How long one piece may go on: nobody's request runs for minutes."""


async def prune(
    ledger: Connection | Pooled,
    retention: Mapping[str, Retention],
    audit: timedelta,
    place: Place | None,
) -> tuple[Pruned, Place | None]:
    """Forgets from a place on, in the steps of the sweep; the place where there may be more."""
    pruner = Pruner(retention, audit=audit, place=place)
    total, began_s = Pruned(), time.monotonic()
    while not pruner.is_through:
        total += await pruner.step(ledger, waits=True)
        if time.monotonic() - began_s > PIECE_S:
            return total, pruner.place
    tended = await tend(ledger, retention)
    return total + Pruned(days=tended.dropped), None


async def count_to_prune(
    ledger: Executor, retention: Mapping[str, Retention], audit: timedelta, place: Place | None
) -> tuple[Pruned, Place | None]:
    """What a prune would forget, and changes nothing."""
    if not retention:
        return Pruned(), None
    total = Pruned()
    if place is None:
        expired = await count_expired(ledger, retention, audit)
        total = expired + Pruned(days=await count_due(ledger))
    [mark, *_] = (place or Place()).marks
    began_s = time.monotonic()
    while True:
        counted, mark = await count_prunable(ledger, retention, mark)
        total += counted
        if not counted.more:
            return total, None
        if time.monotonic() - began_s > PIECE_S:
            return total, Place(marks=(mark,))


async def list_left_alone(ledger: Executor, retention: Mapping[str, Retention]) -> list[str]:
    """Routes with events that no configuration says how long to keep: nothing of them is pruned."""
    return [route for route in await list_routes(ledger) if route not in retention]
