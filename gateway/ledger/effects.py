"""Outside effects of deliveries: begun before the call, done with its result after it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from gateway.errors import LeaseLost
from gateway.ledger.connection import Executor
from gateway.ledger.queries import QUERIES
from gateway.ledger.sealed import Vault, open_result, seal_result
from gateway.model import Lease
from gateway.sealing import sealed_under


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Where an effect stands for a run that wants it."""

    is_ours: bool
    """Whether this run has begun it, and is to make the call."""
    is_done: bool = False
    result: Any = None
    begun_at: datetime | None = None
    """When a call was begun whose end is not known."""


async def begin_effect(
    ledger: Executor, lease: Lease, name: str, *, again: bool, vault: Vault
) -> Effect:
    """Takes note that a call is about to be made. With `again`, also where one was made before and
    its end is unknown. Raises LeaseLost, having changed nothing, if the token is old."""
    while True:
        row = await ledger.fetchrow(
            QUERIES["begin_effect"], lease.delivery_id, lease.token, name, again
        )
        if row is None or not row["is_held"]:
            raise LeaseLost(f"delivery {lease.delivery_id} belongs to another run now")
        if row["is_begun"]:
            return Effect(is_ours=True)
        if row["status"] == "done" or not again:
            break
        # The run before has finished it this very moment: ask for what came of it.
    document = row["result"]
    if row["sealed"] is not None:
        document = open_result(vault.ring, lease.delivery_id, name, row["sealed"])
    result = None if document is None else orjson.loads(document)
    return Effect(
        is_ours=False, is_done=row["status"] == "done", result=result, begun_at=row["begun_at"]
    )


async def finish_effect(
    ledger: Executor, lease: Lease, name: str, result: bytes, *, vault: Vault
) -> None:
    """Keeps the result. Raises LeaseLost where another run has begun the effect meanwhile."""
    plain: str | None = result.decode()
    sealed: bytes | None = None
    if lease.event.route in vault.routes:
        plain, sealed = None, seal_result(vault.ring, lease.delivery_id, name, result)
    kept = await ledger.fetchval(
        QUERIES["finish_effect"],
        lease.delivery_id,
        name,
        lease.token,
        plain,
        sealed,
        None if sealed is None else sealed_under(sealed),
    )
    if kept is None:
        raise LeaseLost(f"delivery {lease.delivery_id} belongs to another run now")


async def release_effect(ledger: Executor, lease: Lease, name: str) -> None:
    """Forgets a call that was certainly not made."""
    await ledger.execute(QUERIES["release_effect"], lease.delivery_id, name, lease.token)
