"""One look at the whole: backlog, dead letters, workers, engines, spool."""

import asyncio
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from redis.exceptions import RedisError

from gateway.errors import StorageUnavailable
from gateway.ledger.connection import Connection, connect
from gateway.ledger.migrate import applied_version, check_version
from gateway.ledger.pauses import Pause, list_pauses
from gateway.ledger.queries import QUERIES
from gateway.project import database_url
from gateway.queue.handoff import connect_redis
from gateway.settings import Settings
from gateway.spool.look import Stock, look_at
from gateway.spool.spool import SPOOL_DIRECTORY
from gateway.sweep.sweeper import MISSED_ROUNDS

LATELY: Final = timedelta(hours=1)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `gateway status` shows."""

    postgres: str | None
    """Why Postgres cannot be reached; None where it can."""
    redis: str | None
    """Why Redis cannot be reached; None where it can."""
    spool: Stock
    schema_version: int | None = None
    routes: list[Row] = field(default_factory=list)
    handlers: list[Row] = field(default_factory=list)
    workers: list[Row] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)

    def as_json(self) -> Row:
        return {
            "postgres": {
                "reachable": self.postgres is None,
                "error": self.postgres,
                "schema_version": self.schema_version,
            },
            "redis": {"reachable": self.redis is None, "error": self.redis},
            "spool": asdict(self.spool),
            "routes": self.routes,
            "handlers": self.handlers,
            "workers": self.workers,
            "pauses": [asdict(pause) for pause in self.pauses],
        }


async def read_status(settings: Settings) -> Report:
    """Asks Postgres and Redis, and looks into the spool, which matters most without Postgres."""
    redis = await _redis_problem(settings)
    spool = await asyncio.to_thread(look_at, settings.data_dir / SPOOL_DIRECTORY)
    try:
        connection = await connect(database_url(settings), name="gateway status")
    except StorageUnavailable as error:
        return Report(postgres=str(error), redis=redis, spool=spool)
    try:
        await check_version(connection)
        workers = await _workers(connection, settings)
        pauses = await list_pauses(connection)
        return Report(
            postgres=None,
            redis=redis,
            spool=spool,
            schema_version=await applied_version(connection),
            routes=await _routes(connection),
            handlers=_with_pauses(await _handlers(connection, workers), pauses),
            workers=workers,
            pauses=pauses,
        )
    finally:
        await connection.close()


async def _workers(connection: Connection, settings: Settings) -> list[Row]:
    lately = settings.sweep * MISSED_ROUNDS
    return [dict(row) for row in await connection.fetch(QUERIES["list_workers"], lately)]


async def _routes(connection: Connection) -> list[Row]:
    rows = await connection.fetch(QUERIES["count_received"], LATELY)
    return [{"route": r["route"], "last_hour": r["n"], "last_event_at": r["last_at"]} for r in rows]


async def _handlers(connection: Connection, workers: list[Row]) -> list[Row]:
    """One row per handler. Orphaned: no worker alive has it, so its deliveries wait."""
    served = {name for worker in workers for name in worker["handlers"]}
    found: dict[tuple[str, str], Row] = {}
    for row in await connection.fetch(QUERIES["count_unfinished"]):
        route, handler = row["route"], row["handler"]
        orphaned = bool(workers) and f"{route} {handler}" not in served
        entry = found.setdefault((route, handler), _empty(route, handler, orphaned))
        entry[row["status"]] = row["n"]
        if row["status"] == "pending":
            entry["oldest_due_at"] = row["oldest_at"]
            entry["waiting_turn"] = row["waiting_turn"]
    for row in await connection.fetch(QUERIES["list_exhausted"]):
        waiting = found.get((row["route"], row["handler"]))
        if waiting is not None and waiting["oldest_due_at"] is not None:
            wait_s = (row["free_at"] - datetime.now(UTC)).total_seconds()
            waiting["note"] = f"at its rate: the next one starts in {max(wait_s, 0):.0f} s"
    for row in await connection.fetch(QUERIES["count_blocked"]):
        entry = found[row["route"], row["handler"]]
        entry["blocked_keys"] = row["keys"]
        if row["waiting"]:
            entry["note"] = f"dead deliveries block {row['keys']} keys, {row['waiting']} wait"
    return list(found.values())


def _with_pauses(handlers: list[Row], pauses: list[Pause]) -> list[Row]:
    """A pause is what there is to know first."""
    for row in handlers:
        row["paused"] = any(pause.holds(row["route"], row["handler"]) for pause in pauses)
        if row["paused"]:
            row["note"] = "paused" if row["note"] is None else f"paused; {row['note']}"
    return handlers


def _empty(route: str, handler: str, orphaned: bool) -> Row:
    return {
        "route": route,
        "handler": handler,
        "pending": 0,
        "oldest_due_at": None,
        "waiting_turn": 0,
        "running": 0,
        "dead": 0,
        "blocked_keys": 0,
        "orphaned": orphaned,
        "note": "orphaned: no worker has this handler" if orphaned else None,
    }


async def _redis_problem(settings: Settings) -> str | None:
    if settings.redis_url is None:
        return "GATEWAY_REDIS_URL is not set"
    redis = connect_redis(settings.redis_url.get_secret_value())
    try:
        await redis.ping()
    except (RedisError, OSError, TimeoutError) as error:
        return str(error) or type(error).__name__
    finally:
        await redis.aclose(close_connection_pool=True)
    return None
