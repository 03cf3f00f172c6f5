"""The whole examination: each part for itself, so that one that fails hides no other."""

import asyncio

from redis.exceptions import RedisError

from gateway.errors import StorageUnavailable
from gateway.ledger.connection import TROUBLE, Connection, close_quietly, connect, describe
from gateway.operate.doctor.clocks import check_clock, postgres_time, redis_time
from gateway.operate.doctor.configuration import check_configuration
from gateway.operate.doctor.credentials import check_credentials
from gateway.operate.doctor.encryption import check_postgres_encryption, check_redis_encryption
from gateway.operate.doctor.finding import Finding, problem
from gateway.operate.doctor.installation import Installation
from gateway.operate.doctor.ledger import check_ledger
from gateway.operate.doctor.machine import check_machine
from gateway.operate.doctor.postgres import POSTGRES, check_postgres, is_usable
from gateway.operate.doctor.public_url import check_public_url
from gateway.operate.doctor.redis import HARMLESS, REDIS, check_redis
from gateway.queue.connecting import connect_redis, describe_redis


async def examine(installation: Installation) -> list[Finding]:
    """Everything, in the order in which one would ask."""
    parts = await asyncio.gather(
        _postgres(installation),
        _redis(installation),
        check_public_url(installation),
        asyncio.to_thread(check_machine, installation),
    )
    (server, ledger), redis, public, machine = parts
    return [
        *check_configuration(installation),
        *server,
        *redis,
        *check_credentials(installation),
        *public,
        *machine,
        *ledger,
    ]


async def _postgres(installation: Installation) -> tuple[list[Finding], list[Finding]]:
    """Of the server, and of the ledger in it."""
    if installation.settings.database_url is None:
        return [], []
    url = installation.settings.database_url.get_secret_value()
    try:
        connection = await connect(url, name="gateway doctor", isolation=None)  # the user's
    except StorageUnavailable as error:
        return [_away(str(error))], []
    try:
        server, ledger = await _in_postgres(installation, connection)
        return [*server, *await check_postgres_encryption(url, connection)], ledger
    except TROUBLE as error:
        return [_away(f"Postgres did not answer to the end: {describe(error)}")], []
    finally:
        await close_quietly(connection)


async def _in_postgres(
    installation: Installation, connection: Connection
) -> tuple[list[Finding], list[Finding]]:
    server = await check_postgres(installation, connection)
    server += await check_clock(installation, POSTGRES, postgres_time(connection))
    return server, await check_ledger(installation, connection) if is_usable(server) else []


def _away(told: str) -> Finding:
    return problem(
        POSTGRES,
        told,
        "is it running, does GATEWAY_DATABASE_URL name it, does the network let it through?",
    )


async def _redis(installation: Installation) -> list[Finding]:
    if installation.settings.redis_url is None:
        return []
    url = installation.settings.redis_url.get_secret_value()
    redis = connect_redis(url)
    try:
        findings = await check_redis(installation.settings, redis)
        findings += check_redis_encryption(url)
        return findings + await check_clock(installation, REDIS, redis_time(redis))
    except (RedisError, OSError, TimeoutError) as error:
        told = f"cannot be reached: {describe_redis(error)}"
        return [problem(REDIS, told, f"start it, or correct GATEWAY_REDIS_URL; {HARMLESS}")]
    finally:
        await redis.aclose(close_connection_pool=True)
