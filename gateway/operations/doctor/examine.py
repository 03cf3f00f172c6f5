"""Run all checks. The groups are independent, so that a failing one does not hide the others."""

import asyncio

from redis.exceptions import RedisError

from gateway.base.errors import StorageUnavailable
from gateway.ledger.connection import TROUBLE, Connection, close_quietly, connect, describe
from gateway.operations.doctor.configuration import (
    HARMLESS,
    REDIS,
    check_configuration,
    check_public_url,
    check_redis,
)
from gateway.operations.doctor.credentials import (
    check_credentials,
    check_postgres_encryption,
    check_redis_encryption,
)
from gateway.operations.doctor.finding import Finding, Installation, problem
from gateway.operations.doctor.ledger import check_ledger
from gateway.operations.doctor.machine import check_clock, check_machine, postgres_time, redis_time
from gateway.operations.doctor.postgres import POSTGRES, check_postgres, is_usable
from gateway.queue.connection import connect_redis, describe_redis


async def examine(installation: Installation) -> list[Finding]:
    """Run all checks, and return the findings in a useful reading order."""
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
    """Return the findings about the server, and those about the ledger in it."""
    if installation.settings.database_url is None:
        return [], []
    url = installation.settings.database_url.get_secret_value()
    try:
        connection = await connect(
            url, name="gateway doctor", isolation=None
        )  # keep the default isolation, which is checked
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
