"""Redis: reachable, keeps what it is told, throws nothing away, has room."""

from collections.abc import Iterator
from typing import Any, Final

from arq.connections import ArqRedis
from redis.exceptions import RedisError, ResponseError

from gateway.operate.doctor.finding import Finding, ok, problem, warning
from gateway.queue.connecting import name_version
from gateway.queue.handoff import QUEUE
from gateway.settings import Settings

REDIS: Final = "Redis"
FULL: Final = 0.9
HARMLESS: Final = "nothing is lost by it: workers find their work in Postgres, a sweep later"


async def check_redis(settings: Settings, redis: ArqRedis) -> list[Finding]:
    """Everything about the server. Raises RedisError, OSError and TimeoutError."""
    known: dict[str, Any] = await redis.info()
    findings = [ok(REDIS, f"reachable, version {name_version(known)}")]
    findings += _persistence(known, await _saves(redis))
    findings += _eviction(known)
    findings += _depth(await redis.zcard(QUEUE), settings)
    return findings


async def _saves(redis: ArqRedis) -> bool | None:
    """Whether snapshots are made; None where the server does not say."""
    try:
        return bool((await redis.config_get("save")).get("save"))
    except (ResponseError, RedisError):
        return None


def _persistence(known: dict[str, Any], saves: bool | None) -> Iterator[Finding]:
    if known.get("aof_enabled"):
        yield ok(REDIS, "keeps its data (appendonly)")
    elif saves:
        yield ok(REDIS, "keeps its data (snapshots)")
    elif saves is False:
        yield warning(REDIS, "keeps nothing over a restart", f"set appendonly yes; {HARMLESS}")


def _eviction(known: dict[str, Any]) -> Iterator[Finding]:
    policy, most = known.get("maxmemory_policy", "noeviction"), int(known.get("maxmemory", 0))
    if policy != "noeviction":
        told = f"maxmemory-policy is {policy}"
        advice = f"set maxmemory-policy noeviction; {HARMLESS}"
        if most:
            yield problem(REDIS, f"{told}: wake-ups may be thrown away", advice)
        else:
            yield warning(REDIS, f"{told}, though without a maxmemory", advice)
    else:
        yield ok(REDIS, "throws nothing away (noeviction)")
    if most and int(known["used_memory"]) >= most * FULL:
        yield warning(
            REDIS,
            f"{known['used_memory_human']} of {known.get('maxmemory_human', most)} are in use",
            f"raise maxmemory, or find out who else fills it; {HARMLESS}",
        )


def _depth(jobs: int, settings: Settings) -> Iterator[Finding]:
    if jobs >= settings.queue_depth:
        yield warning(
            REDIS,
            f"{jobs:,} wake-ups wait and none is added any more",
            "no worker takes them: are workers alive, and do they use the same GATEWAY_REDIS_URL?",
        )
