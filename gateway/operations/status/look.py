"""Take a health snapshot, also while Postgres is unavailable."""

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from gateway.base.errors import ConfigInvalid, StorageUnavailable
from gateway.config.project import database_url, load_keys
from gateway.config.routes import Route, load_config
from gateway.config.settings import Settings
from gateway.ledger.alerts import list_alerts
from gateway.ledger.connection import connect
from gateway.ledger.migrate import check_version
from gateway.ledger.names import load_names
from gateway.ledger.pauses import list_pauses
from gateway.ledger.rejected import count_items
from gateway.ledger.rekeying import count_keys
from gateway.ledger.reloads import read_secret_uses
from gateway.ledger.statistics import flush_interval
from gateway.operations.encryption import key_states
from gateway.operations.status.attention import find_attention
from gateway.operations.status.engines import postgres_away, read_redis, read_spool
from gateway.operations.status.figures import StatusFigures, read_figures
from gateway.operations.status.ledger import (
    Session,
    list_routes,
    read_bulk,
    read_handlers,
    read_postgres,
    read_reconciles,
    read_rejected,
    read_reloads,
    read_workers,
)
from gateway.operations.status.report import StatusReport
from gateway.privacy.encryption import KeyRing


async def read_status(settings: Settings) -> StatusReport:
    """Take a health snapshot over a new connection.

    Without Postgres it still contains Redis and the spool, which matters most at that time. Raises
    SchemaMismatch.
    """
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


async def look(settings: Settings, session: Session, routes: Iterable[Route]) -> StatusReport:
    """Take a health snapshot with the given session."""
    (redis, spool), known = await asyncio.gather(
        _engines(settings), _read_ledger(settings, session, routes)
    )
    known = known.pop("names").labelled(known)
    keys = key_states(known.pop("uses"), _ring(settings), spool["keys"])
    return _attended({"redis": redis, "spool": spool, "keys": keys, **known})


async def _read_ledger(
    settings: Settings, session: Session, routes: Iterable[Route]
) -> dict[str, Any]:
    now: datetime = await session.fetchval("select now()")
    names = await load_names(session)
    routes = [route.identified(names) for route in routes]
    figures = await read_figures(session, now)
    workers = await read_workers(session, settings)
    pauses = await list_pauses(session)
    return {
        "names": names,
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
        "bulk": await read_bulk(session),
        "uses": await count_keys(session),
    }


async def _without_ledger(settings: Settings, routes: Iterable[Route], error: str) -> StatusReport:
    redis, spool = await _engines(settings)
    now = datetime.now(UTC)
    return _attended(
        {
            "at": now,
            "counts_lag_s": flush_interval(settings.sweep).total_seconds(),
            "postgres": postgres_away(error),
            "redis": redis,
            "spool": spool,
            "routes": list_routes(routes, StatusFigures(), {}, {}, now),
            "alerts": [],
            "pauses": [],
            "handlers": [],
            "workers": [],
            "reconciles": [],
            "reloads": [],
            "rejected": [],
            "bulk": [],
            "keys": key_states((), _ring(settings), spool["keys"]),
        }
    )


async def _engines(settings: Settings) -> tuple[Any, Any]:
    redis, spool = await asyncio.gather(read_redis(settings), read_spool(settings))
    return redis, spool


def _attended(known: dict[str, Any]) -> StatusReport:
    status: StatusReport = {"attention": [], **known}  # type: ignore[typeddict-item]
    status["attention"] = find_attention(status)
    return status


def _ring(settings: Settings) -> KeyRing | None:
    """Load the encryption keys if this process has them. They are not needed for a snapshot."""
    try:
        return load_keys(settings, load_config(settings.config))
    except ConfigInvalid:
        return None


def _routes(settings: Settings) -> tuple[Route, ...]:
    """Load the configured routes, or none if there is no valid file.

    The ledger knows the active ones.
    """
    try:
        return load_config(settings.config).routes
    except ConfigInvalid:
        return ()
