"""What status asks of engines and of secrets."""

import asyncio
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

from redis.exceptions import RedisError

from gateway.base.units import format_roughly
from gateway.config.routes import Route
from gateway.config.settings import Settings
from gateway.operations.status.report import (
    Found,
    PostgresState,
    RedisState,
    RouteState,
    SecretState,
    SpoolState,
    StatusReport,
)
from gateway.queue.connection import connect_redis, describe_redis, name_version
from gateway.queue.wake_ups import QUEUE
from gateway.receive.spool.spool import SPOOL_DIRECTORY, look_at


async def read_redis(settings: Settings) -> RedisState:
    """Read the state of Redis."""
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
    """Read the state of the spool on this machine's disk."""
    stock = await asyncio.to_thread(look_at, settings.data_dir / SPOOL_DIRECTORY)
    state: SpoolState = {
        "host": socket.gethostname(),
        **asdict(stock),  # type: ignore[typeddict-item]  # the same fields
        "unreadable": list(stock.unreadable),
    }
    return state


def postgres_away(error: str) -> PostgresState:
    """Return the state of a Postgres that cannot be reached."""
    return PostgresState(
        reachable=False,
        error=error,
        schema_version=None,
        version=None,
        size_bytes=None,
        connections=None,
        max_connections=None,
    )


SOON: Final = timedelta(days=7)
LATELY: Final = timedelta(days=1)
IDLE: Final = timedelta(days=3)
"""How long a sender may still retry requests signed with the old secret."""

REPLACE: Final = "put in what the sender signs with now: docs/secrets.md"


def list_secrets(
    route: Route, uses: Mapping[tuple[str, str], Mapping[str, Any]], now: datetime
) -> list[SecretState]:
    """Return the secrets by their references, in the order of the file."""
    return [
        SecretState(
            secret=str(ref),
            expires_at=ref.expires_at,
            expired=ref.has_expired(now),
            first_used_at=use["first_used_at"] if use else None,
            last_used_at=use["last_used_at"] if use else None,
            uses=use["uses"] if use else 0,
        )
        for ref in route.secrets
        for use in [uses.get((route.name, str(ref)))]
    ]


def can_go(secret: SecretState, route: RouteState, now: datetime) -> bool:
    """Whether the secret was unused for days, while another one was used since."""
    used_at = secret["last_used_at"]
    if used_at is None or now - used_at < IDLE:
        return False
    return any(_used_after(other, used_at) for other in route["secrets"])


def never_used(route: RouteState) -> list[SecretState]:
    """Return valid secrets that never verified a request, if another secret of the route did."""
    if not any(secret["last_used_at"] for secret in route["secrets"]):
        return []
    return [s for s in route["secrets"] if s["last_used_at"] is None and not s["expired"]]


def find_expiries(routes: Iterable[Route], now: datetime) -> Iterator[str]:
    """Describe expired and expiring secrets by configuration alone, without their use."""
    for route in routes:
        if route.secrets and all(ref.has_expired(now) for ref in route.secrets):
            yield f"every secret of {route.name} has expired: all its requests are refused"
            continue
        for ref in route.secrets:
            if ref.expires_at is not None and ref.expires_at - now <= SOON:
                yield f"{ref} of {route.name} {describe_expiry(ref.expires_at, now)}"


def has_rotation(route: RouteState) -> bool:
    """Whether the secrets need their own report beside the route's last event."""
    return len(route["secrets"]) > 1 or any(s["expires_at"] for s in route["secrets"])


def describe_expiry(ends: datetime, now: datetime) -> str:
    """Return `expires in 3d` or `expired 3d ago`."""
    if ends <= now:
        return f"expired {format_roughly(now - ends)} ago"
    return f"expires in {format_roughly(ends - now)}"


def look_at_secrets(status: StatusReport) -> Iterator[Found]:
    """Report expired secrets, and those that expire soon while still needed."""
    for route in status["routes"]:
        valid = [secret for secret in route["secrets"] if not secret["expired"]]
        if route["secrets"] and not valid:
            text = f"every secret of {route['route']} has expired: all its requests are refused"
            yield Found(level="problem", text=text, advice=REPLACE)
            continue
        for secret in route["secrets"]:
            yield from _expiry(secret, route["route"], valid, status["at"])


def look_at_reloads(status: StatusReport) -> Iterator[Found]:
    """Report processes that refused a reload and continue with old secrets."""
    for reload in status["reloads"]:
        if reload["outcome"] == "refused":
            yield Found(
                level="problem",
                text=f"serve on {reload['host']}, pid {reload['pid']}, refused a reload"
                f" {format_roughly(status['at'] - reload['at'])} ago, and goes on with the secrets"
                f" that it had: {reload['error']}",
                advice="correct that, and send it SIGHUP once more: docs/secrets.md",
            )


def _expiry(
    secret: SecretState, route: str, valid: list[SecretState], now: datetime
) -> Iterator[Found]:
    ends, used_at = secret["expires_at"], secret["last_used_at"]
    if ends is None or ends - now > SOON:
        return
    told = f"{secret['secret']} of {route} {describe_expiry(ends, now)}"
    if secret["expired"]:
        yield Found(level="warning", text=told, advice="take it out of routes.yaml")
    elif all(one["expires_at"] is not None and one["expires_at"] <= ends for one in valid):
        text = f"{told}, and there is no other one then"
        yield Found(level="problem", text=text, advice=REPLACE)
    elif used_at is not None and now - used_at < LATELY:
        text = f"{told}, and was used {format_roughly(now - used_at)} ago"
        advice = "the sender still signs with it: change it there, or move `expires_at`"
        yield Found(level="warning", text=text, advice=advice)


def _used_after(other: SecretState, at: datetime) -> bool:
    return other["last_used_at"] is not None and other["last_used_at"] > at
