"""Send wake-ups: delivery ids for arq, one job per batch, without blocking requests."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from uuid import uuid4

import orjson
import structlog
from arq.connections import ArqRedis
from arq.constants import default_queue_name, job_key_prefix
from arq.jobs import serialize_job
from arq.utils import timestamp_ms
from redis.exceptions import RedisError

from gateway.base.failpoints import reached
from gateway.config.settings import Settings
from gateway.queue.connection import connect_redis, describe_redis

ASK_EVERY_S: Final = 0.2
ASK_TIMES: Final = 15


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task repeatedly until it has ended.

    A single cancellation was seen to be swallowed inside the Redis client. The task then kept
    running, and a shutdown waited for it forever.
    """
    for _ in range(ASK_TIMES):
        task.cancel()
        done, _pending = await asyncio.wait({task}, timeout=ASK_EVERY_S)
        if done:
            # If Redis goes away, several tasks end with the same error, of which one is logged. The
            # event loop would print the others ("Task exception was never retrieved").
            if not task.cancelled():
                task.exception()
            return


QUEUE: Final = default_queue_name
DELIVER: Final = "deliver"
"""The only arq function. Its argument is a list of delivery ids."""

WAKE: Final = "gateway:wake"
"""The channel on which idle workers are notified of a new job, so that they need not poll."""

JOB_EXPIRES_MS: Final = 3_600_000
"""An older wake-up is useless: the sweep has found its deliveries long ago."""

CLOCKS_DIFFER_MS: Final = 10_000
"""Jobs are backdated: a worker whose clock is behind would take them for future jobs."""

MAX_IDS_PER_JOB: Final = 500
MAX_BATCHES_WAITING: Final = 200
PACE_S: Final = 0.01
"""Pause between two jobs.

Under load one job carries many batches; a single batch is sent at once.
"""

PAUSE_S: Final = 1.0

log = structlog.get_logger("gateway.queue")


class WakeUpSender:
    """Send wake-ups in the background.

    If one is not sent, the workers find the deliveries in the ledger.
    """

    def __init__(self, redis: ArqRedis, *, max_depth: int) -> None:
        self._redis = redis
        self._max_depth = max_depth
        self._batches: asyncio.Queue[Sequence[int]] = asyncio.Queue(MAX_BATCHES_WAITING)
        self._task: asyncio.Task[None] | None = None
        self._reachable = True
        self._depth = 0
        self.counts = dict.fromkeys(("sent", "away", "deep", "dropped"), 0)
        """Batches by outcome.

        `deep`: enough jobs wait in Redis. `dropped`: Redis is too far behind. The workers find the
        deliveries of batches that were not sent.
        """

    @property
    def is_reachable(self) -> bool:
        """Whether Redis answered the last request."""
        return self._reachable

    async def start(self) -> None:
        self._task = asyncio.create_task(self._send_forever(), name="hand-off")

    async def stop(self) -> None:
        """Stop the sender. The next sweep finds deliveries that were not sent in the ledger."""
        if self._task is not None:
            await end(self._task)
        await self._redis.aclose(close_connection_pool=True)

    def offer(self, delivery_ids: Sequence[int]) -> None:
        """Queue ids for sending. They are dropped if the queue is too far behind to be useful."""
        if self._batches.full():
            self.counts["dropped"] += 1
        else:
            self._batches.put_nowait(delivery_ids)

    async def ask(self) -> None:
        """Check whether Redis is reachable, for times in which nothing is sent."""
        try:
            await self._redis.ping()
        except (RedisError, OSError, TimeoutError) as error:
            self._note_away(error)
        else:
            self._note_back()

    async def send(self, delivery_ids: Sequence[int]) -> bool:
        """Enqueue one job.

        Return False if Redis is unavailable, full, or has enough jobs already.
        """
        try:
            if self._depth >= self._max_depth:
                self._depth = await self._redis.zcard(QUEUE)
            if self._depth >= self._max_depth:
                self.counts["deep"] += 1
                return False
            reached("enqueue.sending")
            self._depth = await self._enqueue(delivery_ids)
            reached("enqueue.sent")
        except (RedisError, OSError, TimeoutError) as error:
            self.counts["away"] += 1
            self._note_away(error)
            return False
        self.counts["sent"] += 1
        self._note_back()
        return True

    async def _send_forever(self) -> None:
        while True:
            delivery_ids = list(await self._batches.get())
            while len(delivery_ids) < MAX_IDS_PER_JOB and not self._batches.empty():
                delivery_ids.extend(self._batches.get_nowait())
            await asyncio.sleep(PACE_S if await self.send(delivery_ids) else PAUSE_S)

    async def _enqueue(self, delivery_ids: Sequence[int]) -> int:
        """Enqueue a job in one round trip. Return how many jobs wait now."""
        now_ms = timestamp_ms()
        job_id = uuid4().hex  # not a delivery's id: arq would drop a replay as a repeated job
        job = serialize_job(
            DELIVER, (list(delivery_ids),), {}, None, now_ms, serializer=orjson.dumps
        )
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.psetex(job_key_prefix + job_id, JOB_EXPIRES_MS, job)
            pipe.zadd(QUEUE, {job_id: now_ms - CLOCKS_DIFFER_MS})
            pipe.zcard(QUEUE)
            pipe.publish(WAKE, b"")
            *answers, _ = await pipe.execute(raise_on_error=False)  # a lost wake-up only delays
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return int(answers[-1])

    def _note_away(self, error: Exception) -> None:
        if self._reachable:
            log.warning(
                "redis_away",
                error=describe_redis(error),
                note="the workers read the ledger instead",
            )
        self._reachable = False

    def _note_back(self) -> None:
        if not self._reachable:
            log.info("redis_back")
        self._reachable = True


async def wake(settings: Settings, delivery_ids: Sequence[int]) -> None:
    """Wake up workers once. Without Redis they find the deliveries in their next sweep."""
    if settings.redis_url is None or not delivery_ids:
        return
    redis = connect_redis(settings.redis_url.get_secret_value())
    hand_off = WakeUpSender(redis, max_depth=settings.queue_depth)
    await hand_off.send(delivery_ids)
    await hand_off.stop()
