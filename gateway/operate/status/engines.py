"""Redis, and the spool of this machine."""

import asyncio
import socket
from dataclasses import asdict

from redis.exceptions import RedisError

from gateway.operate.status.report import PostgresState, RedisState, SpoolState
from gateway.queue.connecting import connect_redis, describe_redis, name_version
from gateway.queue.handoff import QUEUE
from gateway.settings import Settings
from gateway.spool.look import look_at
from gateway.spool.spool import SPOOL_DIRECTORY


async def read_redis(settings: Settings) -> RedisState:
    """How Redis is."""
    if settings.redis_url is None:
        return _away("GATEWAY_REDIS_URL is not set")
    redis = connect_redis(settings.redis_url.get_secret_value())
    try:
        known = await redis.info()
        jobs = await redis.zcard(QUEUE)
    except (RedisError, OSError, TimeoutError) as error:
        return _away(describe_redis(error))
    finally:
        await redis.aclose(close_connection_pool=True)
    return RedisState(
        reachable=True,
        error=None,
        version=name_version(known),
        memory_bytes=int(known["used_memory"]),
        jobs=jobs,
    )


def _away(error: str) -> RedisState:
    return RedisState(reachable=False, error=error, version=None, memory_bytes=None, jobs=None)


async def read_spool(settings: Settings) -> SpoolState:
    """What waits on this machine's disk."""
    stock = await asyncio.to_thread(look_at, settings.data_dir / SPOOL_DIRECTORY)
    state: SpoolState = {
        "host": socket.gethostname(),
        **asdict(stock),  # type: ignore[typeddict-item]  # the same fields
        "unreadable": list(stock.unreadable),
    }
    return state


def postgres_away(error: str) -> PostgresState:
    """What there is to say of a Postgres that does not answer."""
    return PostgresState(
        reachable=False,
        error=error,
        schema_version=None,
        version=None,
        size_bytes=None,
        connections=None,
        max_connections=None,
    )
