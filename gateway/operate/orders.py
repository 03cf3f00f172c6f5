"""Replays and discards deliveries on a person's order."""

from collections.abc import Sequence
from typing import Protocol

from gateway.errors import CommandFailed, TransitionRefused
from gateway.failpoints import reached
from gateway.ledger.connection import Executor, connect
from gateway.ledger.deliveries import discard, replay
from gateway.ledger.migrate import check_version
from gateway.project import database_url
from gateway.queue.handoff import HandOff, connect_redis
from gateway.settings import Settings

Refusal = CommandFailed | TransitionRefused
Results = dict[int, Refusal | None]
"""What became of each delivery: None where the order was carried out."""


class Order(Protocol):
    """A guarded move of one delivery that leaves an audit row; returns what may run now."""

    async def __call__(
        self, ledger: Executor, delivery_id: int, *, actor: str, reason: str | None
    ) -> list[int]: ...


async def replay_all(
    settings: Settings, delivery_ids: Sequence[int], *, actor: str, reason: str | None
) -> Results:
    """Replays each; a refusal of one does not keep back the others."""
    return await _order(settings, replay, delivery_ids, actor, reason)


async def discard_all(
    settings: Settings, delivery_ids: Sequence[int], *, actor: str, reason: str | None
) -> Results:
    """Discards each; a refusal of one does not keep back the others."""
    return await _order(settings, discard, delivery_ids, actor, reason)


async def _order(
    settings: Settings, order: Order, delivery_ids: Sequence[int], actor: str, reason: str | None
) -> Results:
    connection = await connect(database_url(settings), name="gateway orders")
    results: Results = {}
    due: list[int] = []
    try:
        await check_version(connection)
        for delivery_id in dict.fromkeys(delivery_ids):
            try:
                due += await order(connection, delivery_id, actor=actor, reason=reason)
            except (CommandFailed, TransitionRefused) as refusal:
                results[delivery_id] = refusal
            else:
                results[delivery_id] = None
    finally:
        await connection.close()
    reached("replay.marked")
    await _wake(settings, due)
    return results


async def _wake(settings: Settings, delivery_ids: Sequence[int]) -> None:
    """Tells a worker. Without Redis it finds them at its next look into the ledger."""
    if settings.redis_url is None or not delivery_ids:
        return
    hand_off = HandOff(
        connect_redis(settings.redis_url.get_secret_value()), max_depth=settings.queue_depth
    )
    await hand_off.send(delivery_ids)
    await hand_off.stop()
