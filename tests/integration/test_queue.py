"""Ids through arq to a worker that sleeps until it is woken."""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import arq.worker
import pytest
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.queue.connection import connect_redis
from gateway.queue.wake_ups import DELIVER, WakeUpSender
from gateway.queue.worker import IDLE_S, listen_forever, worker_settings
from tests.support.waiting import PATIENCE_S, until


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[list[int]]:
    hinted: list[int] = []
    task = asyncio.create_task(listen_forever(url, hinted.extend))
    redis = connect_redis(url)
    try:

        async def subscribed() -> bool:
            return bool((await redis.pubsub_numsub("gateway:wake"))[0][1])

        await until(subscribed)
        yield hinted
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await redis.aclose(close_connection_pool=True)


async def test_what_is_handed_off_is_hinted_at_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.queue.worker.IDLE_S", 600.0)  # only a wake-up can be the cause
    async with listening(redis_url) as hinted:
        hand_off = WakeUpSender(connect_redis(redis_url), max_depth=10)
        for batch in ([1, 2], [3]):
            assert await hand_off.send(batch)
            await until(lambda batch=batch: hinted[-len(batch) :] == batch)
        await hand_off.stop()
    assert hinted == [1, 2, 3]


async def test_a_wake_up_that_got_lost_only_delays(redis_url: str) -> None:
    assert IDLE_S <= 5
    async with listening(redis_url) as hinted:
        redis = connect_redis(redis_url)
        await redis.enqueue_job(DELIVER, [7])  # as by someone who does not know of the channel
        await until(lambda: hinted == [7])
        await redis.aclose(close_connection_pool=True)


async def test_errors_of_jobs_that_end_with_redis_are_retrieved(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the event loop prints "Task exception was never retrieved" for each of them."""
    unretrieved: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: unretrieved.append(told))
    began, ended = asyncio.Event(), asyncio.Event()

    async def run_job(*_: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RedisConnectionError("Connection closed by server.") from None
        finally:
            ended.set()

    monkeypatch.setattr(arq.worker.Worker, "run_job", run_job)
    async with listening(redis_url):
        redis = connect_redis(redis_url)
        await redis.enqueue_job(DELIVER, [7])
        await began.wait()
        await redis.client_kill_filter(_type="pubsub")
        await ended.wait()
        await redis.aclose(close_connection_pool=True)
    gc.collect()
    assert unretrieved == []


async def test_a_batch_that_follows_another_waits_for_company(redis_url: str) -> None:
    """Under load one job carries what many batches brought."""
    async with listening(redis_url) as hinted:
        hand_off = WakeUpSender(connect_redis(redis_url), max_depth=1000)
        jobs: list[int] = []
        send = hand_off.send

        async def counted(delivery_ids: list[int]) -> bool:
            jobs.append(len(delivery_ids))
            return await send(delivery_ids)

        hand_off.send = counted  # type: ignore[method-assign, assignment]
        await hand_off.start()
        for delivery_id in range(100):
            hand_off.offer([delivery_id])
            await asyncio.sleep(0)
        await until(lambda: len(hinted) == 100)
        await hand_off.stop()
    assert sorted(hinted) == list(range(100))
    assert len(jobs) < 20


async def test_a_signal_that_the_redis_client_would_swallow_stops_the_arq_command(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes between the sending of a command and the return of `asyncio.wait_for`."""
    loop, handlers, stopped = asyncio.get_running_loop(), dict[int, Any](), list[str]()
    monkeypatch.setattr(
        loop, "add_signal_handler", lambda number, *call: handlers.update({number: partial(*call)})
    )

    async def stop() -> None:
        stopped.append("worker")

    async def start() -> Any:
        metrics = SimpleNamespace(watch_redis=lambda _: None)
        return SimpleNamespace(metrics=metrics, hint=lambda _: None, stop=stop)

    worker = arq.worker.Worker(**worker_settings(redis_url, start))
    send = AbstractConnection._send_packed_command
    signals = [signal.SIGTERM]

    async def send_and_signal(self: AbstractConnection, command: Any) -> None:
        await send(self, command)
        if "hint" in worker.ctx and signals:
            loop.call_soon(handlers[signals.pop()])

    monkeypatch.setattr(AbstractConnection, "_send_packed_command", send_and_signal)
    running = asyncio.create_task(worker.async_run())
    ended, _ = await asyncio.wait({running}, timeout=PATIENCE_S)
    assert ended
    assert running.cancelled()
    on_shutdown: Any = worker.on_shutdown
    await on_shutdown(worker.ctx)
    await worker.pool.aclose(close_connection_pool=True)
    assert stopped == ["worker"]
