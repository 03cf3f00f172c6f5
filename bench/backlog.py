"""Work that waits before its worker starts, for each kind of worker."""

import asyncio

from arq.connections import ArqRedis, RedisSettings, create_pool
from arq.constants import default_queue_name, job_key_prefix
from arq.jobs import serialize_job
from arq.utils import timestamp_ms

from bench.claims import claim_events
from bench.environment import Environment
from bench.requests import TYPE, stripe_body

EXPIRES_MS = 86_400_000
MARKS = "insert into marks (event_id) select 'evt_' || md5(n::text) from generate_series(1, $1) n"
EVENTS = """
insert into textbook (event_id, type, body)
select 'evt_' || md5(n::text), $2, $3 from generate_series(1, $1) n
returning event_id
"""


def leave_deliveries(environment: Environment, count: int) -> None:
    """For `gateway worker`: events claimed as `serve` claims them."""
    asyncio.run(claim_events(environment.database.url, count))


def leave_marks(environment: Environment, count: int) -> None:
    """For the bare loop."""
    environment.database.execute(MARKS, count)


def leave_jobs(environment: Environment, count: int) -> None:
    """For an arq worker: the rows, then one job each."""
    body = b"evt_".join(stripe_body())
    rows = environment.database.fetch(EVENTS, count, TYPE, body)
    asyncio.run(_enqueue(environment.redis_socket, [row["event_id"] for row in rows]))


async def _enqueue(socket: str, event_ids: list[str]) -> None:
    """What `enqueue_job` writes, without its round trips."""
    redis: ArqRedis = await create_pool(RedisSettings(unix_socket_path=socket))
    now_ms = timestamp_ms()
    async with redis.pipeline(transaction=False) as pipe:
        for event_id in event_ids:
            job = serialize_job("handle", (event_id,), {}, None, now_ms)
            pipe.psetex(job_key_prefix + event_id, EXPIRES_MS, job)
            pipe.zadd(default_queue_name, {event_id: now_ms})
        await pipe.execute()
    await redis.aclose(close_connection_pool=True)
