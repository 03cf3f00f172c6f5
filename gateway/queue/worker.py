"""The arq worker. Its only job passes delivery ids to the gateway's worker."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final

import arq.worker
import orjson
import structlog
from arq.connections import ArqRedis

from gateway.processes.work import Worker
from gateway.queue.connection import connect_redis, describe_redis
from gateway.queue.wake_ups import DELIVER, QUEUE, WAKE, end

POLL_S: Final = 0.02
"""Poll interval under the `arq` command, where no wake-ups arrive."""

IDLE_S: Final = 1.0
"""How long `gateway worker` waits for a wake-up before it polls anyway: one may get lost."""

RESTART_S: Final = (0.2, 5.0)

log = structlog.get_logger("gateway.queue")


async def deliver(ctx: dict[str, Any], delivery_ids: list[int]) -> None:
    """Pass the ids on and return. Leases, retries and timeouts are in the ledger, not in arq."""
    ctx["hint"]([i for i in delivery_ids if isinstance(i, int)])


def worker_arguments(redis: ArqRedis) -> dict[str, Any]:
    """Return arq's options: no stored results, no retry of a wake-up, a short poll interval."""
    return {
        "functions": [arq.worker.func(deliver, name=DELIVER)],
        "queue_name": QUEUE,
        "redis_pool": redis,
        "job_serializer": orjson.dumps,
        "job_deserializer": orjson.loads,
        "keep_result": 0,
        "max_tries": 1,
        "max_jobs": 100,
        "job_timeout": 10,
        "poll_delay": POLL_S,
        "log_results": False,
    }


class QueueConnection:
    """The state of the connection to the queue, and the number of restarts."""

    def __init__(self) -> None:
        self.is_up = False
        self.restarts = 0


async def listen_forever(
    url: str, hint: Callable[[list[int]], None], link: QueueConnection | None = None
) -> None:
    """Run an arq worker, and restart it whenever a Redis error ends it.

    Meanwhile the sweep finds deliveries.
    """
    delay_s = RESTART_S[0]
    link = link or QueueConnection()
    redis = connect_redis(url)  # once: it remembers which Sentinel was wrong
    while True:
        started = asyncio.get_running_loop().time()
        try:
            await _listen(redis, hint, link)
        except Exception as error:  # errors of arq and redis-py: continue after any of them
            if asyncio.get_running_loop().time() - started > RESTART_S[1]:
                delay_s = RESTART_S[0]
            log.warning("queue_away", error=describe_redis(error), again_in_s=delay_s)
        link.is_up = False
        link.restarts += 1
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 2, RESTART_S[1])


class _WokenWorker(arq.worker.Worker):
    """An arq worker that polls the queue when it is woken, instead of fifty times a second."""

    def __init__(self, redis: ArqRedis, hint: Callable[[list[int]], None]) -> None:
        arguments = {**worker_arguments(redis), "poll_delay": 0}
        super().__init__(**arguments, handle_signals=False, ctx={"hint": hint})
        self._redis = redis
        self._woken = asyncio.Event()

    async def wake_forever(self, link: QueueConnection) -> None:
        async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(WAKE)
            link.is_up = True
            while True:
                if await channel.get_message(timeout=IDLE_S) is not None:
                    self._woken.set()

    async def _poll_iteration(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S):
                await self._woken.wait()
        self._woken.clear()
        await super()._poll_iteration()


async def _listen(
    redis: ArqRedis, hint: Callable[[list[int]], None], link: QueueConnection
) -> None:
    worker = _WokenWorker(redis, hint)
    work = worker.async_run(), worker.wake_forever(link)
    running = [asyncio.create_task(part) for part in work]
    try:
        ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        loops = [*running, worker.main_task]
        await asyncio.gather(*(end(loop) for loop in loops if loop is not None))
        await asyncio.gather(*map(end, worker.tasks.values()))  # no loop starts another one
        await redis.aclose(close_connection_pool=True)


async def _stop_on(stopping: asyncio.Event, worker: Worker, main: asyncio.Task[Any] | None) -> None:
    """Stop the worker gracefully on a signal, and then arq's main task.

    arq's own handler cancels its main task once, which the Redis client may swallow: on Python
    3.11 `asyncio.wait_for` drops a cancellation that arrives after its command was sent. It also
    cancels wake-ups that are being handled, and skips `on_shutdown` then.
    """
    await stopping.wait()
    await worker.stop()
    if main is not None:
        await end(main)


def worker_settings(url: str, start: Callable[[], Awaitable[Worker]]) -> dict[str, Any]:
    """Return the settings of `arq gateway.queue.WorkerSettings`."""

    async def on_startup(ctx: dict[str, Any]) -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        worker = await start()
        worker.metrics.watch_redis(lambda: True)  # without Redis, arq ends
        ctx["hint"], ctx["stopping"] = worker.hint, stopping
        ctx["stopped"] = asyncio.create_task(_stop_on(stopping, worker, asyncio.current_task()))

    async def on_shutdown(ctx: dict[str, Any]) -> None:
        if "stopped" in ctx:  # else the start failed
            ctx["stopping"].set()
            await ctx["stopped"]

    return {
        **worker_arguments(connect_redis(url)),
        "on_startup": on_startup,
        "on_shutdown": on_shutdown,
    }
