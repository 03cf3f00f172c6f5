"""Outside effects of deliveries: begun before the call, done with its result after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from gateway.errors import LeaseLost, NotFound, TransitionRefused
from gateway.ledger.connection import Executor
from gateway.ledger.deliveries import turns_of
from gateway.ledger.queries import QUERIES
from gateway.ledger.sealed import Vault, open_result, seal_result
from gateway.ledger.turns import advance
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
    """Record that a call is about to be made. If one was made before and its outcome is unknown:
    with `again` record another one, without it record that this run goes on without its outcome.
    Raise LeaseLost, having changed nothing, if the token is old."""
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
    """Forget a call that was not done, so that the next run makes it."""
    await ledger.execute(QUERIES["release_effect"], lease.delivery_id, name, lease.token)


async def note_effect_error(ledger: Executor, lease: Lease, name: str, error: str) -> None:
    """Keep how a call ended whose outcome is unknown."""
    await ledger.execute(QUERIES["note_effect_error"], lease.delivery_id, name, lease.token, error)


async def retry_effects(
    ledger: Executor, delivery_id: int, name: str | None, *, actor: str, reason: str | None
) -> tuple[list[str], list[int]]:
    """Run a delivery again and make its effects of unknown outcome again, or one of them. Return
    their names, and deliveries that may run now. Raise TransitionRefused if that is impossible."""
    names = await _find_unknown(ledger, delivery_id, name)
    ids = [delivery_id] * len(names)
    rows = await ledger.fetch(QUERIES["retry_effects"], ids, names, actor, reason, None)
    moved = [row for row in rows if row["id"] is not None]
    if not rows:
        raise TransitionRefused(
            f"delivery {delivery_id} cannot run again: its payload was pruned or erased; take the"
            f" effect off the list with `gateway effects confirm {delivery_id}`"
        )
    if not moved:
        raise TransitionRefused(
            f"delivery {delivery_id} is running right now: wait until its run has ended"
        )
    return names, [delivery_id, *await advance(ledger, turns_of(moved[:1]))]


async def confirm_effects(
    ledger: Executor, delivery_id: int, name: str | None, *, actor: str, reason: str | None
) -> list[str]:
    """Count the effects of unknown outcome of a delivery, or one of them, as done. Return their
    names."""
    names = await _find_unknown(ledger, delivery_id, name)
    ids = [delivery_id] * len(names)
    await ledger.fetch(QUERIES["confirm_effects"], ids, names, actor, reason, None)
    return names


async def _find_unknown(ledger: Executor, delivery_id: int, name: str | None) -> list[str]:
    rows = await ledger.fetch(QUERIES["find_unknown_effects"], delivery_id, name)
    if rows:
        return [row["name"] for row in rows]
    if await ledger.fetchrow(QUERIES["find_delivery"], delivery_id) is None:
        raise NotFound(f"there is no delivery {delivery_id}")
    such = "effect" if name is None else f"effect {name!r}"
    raise TransitionRefused(f"delivery {delivery_id} has no {such} of unknown outcome")


async def mark_effects_unknown(ledger: Executor, lease: Lease, names: Sequence[str]) -> None:
    """Let people see that the run completes without the outcomes of these calls. Raise LeaseLost,
    having changed nothing, if the token is old."""
    held = await ledger.fetchval(
        QUERIES["mark_effects_unknown"], lease.delivery_id, lease.token, list(names)
    )
    if not held:
        raise LeaseLost(f"delivery {lease.delivery_id} belongs to another run now")
