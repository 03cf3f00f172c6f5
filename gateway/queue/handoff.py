"""Tells the workers of new deliveries: ids to arq, one job per batch, and never in the way."""

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

import orjson
import structlog
from arq.connections import ArqRedis
from arq.constants import default_queue_name, job_key_prefix
from arq.jobs import serialize_job
from arq.utils import timestamp_ms
from redis.exceptions import RedisError

from gateway.failpoints import reached
from gateway.queue.cancellation import end
from gateway.queue.connecting import connect_redis, describe_redis
from gateway.settings import Settings

QUEUE: Final = default_queue_name
DELIVER: Final = "deliver"
"""The one arq function: its argument is a list of delivery ids."""

WAKE: Final = "gateway:wake"
"""The channel that tells idle workers of a new job, so that they need not ask all the time."""

JOB_EXPIRES_MS: Final = 3_600_000
"""A hint older than this is worth nothing: the sweep has long found its deliveries."""

CLOCKS_DIFFER_MS: Final = 10_000
"""A worker whose clock is behind would leave a job that seems to be for later."""

MAX_IDS_PER_JOB: Final = 500
MAX_BATCHES_WAITING: Final = 200
PACE_S: Final = 0.01
"""Between two jobs: under load one carries many batches; a lone batch still goes at once."""

PAUSE_S: Final = 1.0

log = structlog.get_logger("gateway.queue")


class HandOff:
    """A background sender. What it cannot send is not lost: the workers find it in the ledger."""

    def __init__(self, redis: ArqRedis, *, max_depth: int) -> None:
        self._redis = redis
        self._max_depth = max_depth
        self._batches: asyncio.Queue[Sequence[int]] = asyncio.Queue(MAX_BATCHES_WAITING)
        self._task: asyncio.Task[None] | None = None
        self._reachable = True
        self._depth = 0
        self.counts = dict.fromkeys(("sent", "away", "deep", "dropped"), 0)
        """Of what became of batches: `deep`, where enough waits in Redis; `dropped`, where Redis
        is too far behind. The workers find what was not sent."""

    @property
    def is_reachable(self) -> bool:
        """Whether Redis answered when it was asked last."""
        return self._reachable

    async def start(self) -> None:
        self._task = asyncio.create_task(self._send_forever(), name="hand-off")

    async def stop(self) -> None:
        """Ends the sender. What was not sent is found in the ledger by the next sweep."""
        if self._task is not None:
            await end(self._task)
        await self._redis.aclose(close_connection_pool=True)

    def offer(self, delivery_ids: Sequence[int]) -> None:
        """Takes ids to send; drops them when the queue is too far behind to be of help."""
        if self._batches.full():
            self.counts["dropped"] += 1
        else:
            self._batches.put_nowait(delivery_ids)

    async def ask(self) -> None:
        """Whether Redis is there, where nothing has been sent for a while."""
        try:
            await self._redis.ping()
        except (RedisError, OSError, TimeoutError) as error:
            self._note_away(error)
        else:
            self._note_back()

    async def send(self, delivery_ids: Sequence[int]) -> bool:
        """Enqueues one job; False where Redis is away, full, or deep enough already."""
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
        """One round trip; returns how many jobs wait now."""
        now_ms = timestamp_ms()
        job_id = uuid4().hex  # never the delivery's id: a replay must not be taken for a repeat
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
    """Tells workers, once. Without Redis they find the deliveries at their next look."""
    if settings.redis_url is None or not delivery_ids:
        return
    redis = connect_redis(settings.redis_url.get_secret_value())
    hand_off = HandOff(redis, max_depth=settings.queue_depth)
    await hand_off.send(delivery_ids)
    await hand_off.stop()
