"""Runs deliveries again on a person's order."""

from collections.abc import Sequence

from gateway.errors import CommandFailed, TransitionRefused
from gateway.ledger.connection import connect
from gateway.ledger.deliveries import replay
from gateway.ledger.migrate import check_version
from gateway.project import database_url
from gateway.queue.handoff import HandOff, connect_redis
from gateway.settings import Settings

Refusal = CommandFailed | TransitionRefused


async def replay_all(
    settings: Settings, delivery_ids: Sequence[int], *, actor: str, reason: str | None
) -> dict[int, Refusal | None]:
    """Replays each; a refusal of one does not keep back the others."""
    connection = await connect(database_url(settings), name="gateway replay")
    results: dict[int, Refusal | None] = {}
    try:
        await check_version(connection)
        for delivery_id in delivery_ids:
            try:
                await replay(connection, delivery_id, actor=actor, reason=reason)
            except (CommandFailed, TransitionRefused) as refusal:
                results[delivery_id] = refusal
            else:
                results[delivery_id] = None
    finally:
        await connection.close()
    await _wake(settings, [i for i, refusal in results.items() if refusal is None])
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
