"""Takes the look: from a process that has the ledger at hand, or as far as it can be had."""

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from gateway.errors import ConfigInvalid, StorageUnavailable
from gateway.ledger.alerts import list_alerts
from gateway.ledger.connection import connect
from gateway.ledger.migrate import check_version
from gateway.ledger.pauses import list_pauses
from gateway.ledger.rejected import count_items
from gateway.ledger.rekeying import count_keys
from gateway.ledger.secret_uses import read_secret_uses
from gateway.ledger.tallies import flush_interval
from gateway.operate.keys import key_states
from gateway.operate.status.attention import find_attention
from gateway.operate.status.engines import postgres_away, read_redis, read_spool
from gateway.operate.status.figures import Figures, read_figures
from gateway.operate.status.ledger import (
    Session,
    list_routes,
    read_handlers,
    read_orders,
    read_postgres,
    read_reconciles,
    read_rejected,
    read_reloads,
    read_workers,
)
from gateway.operate.status.report import Status
from gateway.project import database_url, load_keys
from gateway.routes import Route, load_config
from gateway.sealing import KeyRing
from gateway.settings import Settings


async def read_status(settings: Settings) -> Status:
    """Without Postgres still what there is to say of Redis and of the spool, which matters most
    then. Raises SchemaMismatch."""
    routes = _routes(settings)
    try:
        connection = await connect(database_url(settings), name="gateway status")
    except StorageUnavailable as error:
        return await _without_ledger(settings, routes, str(error))
    try:
        await check_version(connection)
        return await look(settings, connection, routes)
    finally:
        await connection.close()


async def look(settings: Settings, session: Session, routes: Iterable[Route]) -> Status:
    """With the ledger at hand."""
    (redis, spool), known = await asyncio.gather(
        _engines(settings), _read_ledger(settings, session, routes)
    )
    keys = key_states(known.pop("uses"), _ring(settings), spool["keys"])
    return _attended({"redis": redis, "spool": spool, "keys": keys, **known})


async def _read_ledger(
    settings: Settings, session: Session, routes: Iterable[Route]
) -> dict[str, Any]:
    now: datetime = await session.fetchval("select now()")
    figures = await read_figures(session, now)
    workers = await read_workers(session, settings)
    pauses = await list_pauses(session)
    return {
        "at": now,
        "counts_lag_s": flush_interval(settings.sweep).total_seconds(),
        "postgres": await read_postgres(session),
        "routes": list_routes(
            routes, figures, await read_secret_uses(session), await count_items(session), now
        ),
        "alerts": await list_alerts(session),
        "pauses": [asdict(pause) for pause in pauses],
        "handlers": await read_handlers(session, workers, pauses, figures),
        "workers": workers,
        "reconciles": await read_reconciles(session),
        "reloads": await read_reloads(session),
        "rejected": await read_rejected(session, now, figures),
        "orders": await read_orders(session),
        "uses": await count_keys(session),
    }


async def _without_ledger(settings: Settings, routes: Iterable[Route], error: str) -> Status:
    redis, spool = await _engines(settings)
    now = datetime.now(UTC)
    return _attended(
        {
            "at": now,
            "counts_lag_s": flush_interval(settings.sweep).total_seconds(),
            "postgres": postgres_away(error),
            "redis": redis,
            "spool": spool,
            "routes": list_routes(routes, Figures(), {}, {}, now),
            "alerts": [],
            "pauses": [],
            "handlers": [],
            "workers": [],
            "reconciles": [],
            "reloads": [],
            "rejected": [],
            "orders": [],
            "keys": key_states((), _ring(settings), spool["keys"]),
        }
    )


async def _engines(settings: Settings) -> tuple[Any, Any]:
    redis, spool = await asyncio.gather(read_redis(settings), read_spool(settings))
    return redis, spool


def _attended(known: dict[str, Any]) -> Status:
    status: Status = {"attention": [], **known}  # type: ignore[typeddict-item]
    status["attention"] = find_attention(status)
    return status


def _ring(settings: Settings) -> KeyRing | None:
    """The keys, where this process has them: a person who looks need not."""
    try:
        return load_keys(settings, load_config(settings.config))
    except ConfigInvalid:
        return None


def _routes(settings: Settings) -> tuple[Route, ...]:
    """Where there is a file to read: elsewhere those that the ledger knows will do."""
    try:
        return load_config(settings.config).routes
    except ConfigInvalid:
        return ()
