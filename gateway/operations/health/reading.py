"""Take a health snapshot, also while Postgres is unavailable."""

import asyncio
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from redis.exceptions import RedisError

from gateway.base.errors import ConfigInvalid, Overloaded, StorageUnavailable
from gateway.base.model import Outcome
from gateway.config.project import database_url, load_keys
from gateway.config.routes import Route, load_config
from gateway.config.settings import Settings
from gateway.ledger.alerts import list_alerts
from gateway.ledger.bulk import BulkOperation, BulkStatus, list_bulk
from gateway.ledger.connection import QUERIES, Connection, Executor, Pooled, connect
from gateway.ledger.health import (
    MOST_COUNTED,
    HandlerKey,
    LedgerHealth,
    read_health,
)
from gateway.ledger.migrate import check_version
from gateway.ledger.names import load_names
from gateway.ledger.rejected import Chosen, count_items, group_rejected
from gateway.ledger.rekeying import count_keys
from gateway.ledger.reloads import read_secret_uses
from gateway.ledger.statistics import ACKNOWLEDGED, REQUESTS, flush_interval, percentile
from gateway.operations.encryption import key_states
from gateway.operations.health.attention import find_attention
from gateway.operations.health.snapshot import (
    HandlerState,
    HealthSnapshot,
    PostgresState,
    ReconcileState,
    RedisState,
    RejectedState,
    ReloadState,
    RequestCounts,
    RouteState,
    SecretState,
    SpoolState,
)
from gateway.privacy.encryption import KeyRing
from gateway.queue.connection import connect_redis, describe_redis, name_version
from gateway.queue.wake_ups import QUEUE
from gateway.receive.spool.spool import SPOOL_DIRECTORY, look_at
from gateway.worker.sweeper import MISSED_ROUNDS

MINUTES: Final = timedelta(minutes=5)
HOUR: Final = timedelta(hours=1)
NEWEST_BULK: Final = 50
MOST_CAUSES: Final = 50

RUNS: Final = (Outcome.DONE, Outcome.RETRY, Outcome.DEAD)
"""Outcomes decided by the handler. The others say nothing about it."""
ANSWERS: Final = ("accepted", "duplicate", "ignored")
NOT_REFUSED: Final = frozenset({*ANSWERS, "greeted", ACKNOWLEDGED})
"""A greeted request is a handshake, which is answered but is not an event."""

Session = Connection | Pooled


async def read_snapshot_alone(settings: Settings) -> HealthSnapshot:
    """Take a health snapshot over a new connection.

    Without Postgres it still contains Redis and the spool, which matters most at that time. Raises
    SchemaMismatch.
    """
    try:
        routes = load_config(settings.config).routes
    except ConfigInvalid:
        routes = ()  # the ledger knows the active ones
    try:
        connection = await connect(database_url(settings), name="gateway status")
    except StorageUnavailable as error:
        return await read_snapshot(settings, None, routes, error=str(error))
    try:
        await check_version(connection)
        return await read_snapshot(settings, connection, routes)
    finally:
        await connection.close()


async def read_snapshot(
    settings: Settings,
    session: Session | None,
    routes: Iterable[Route],
    *,
    error: str | None = None,
) -> HealthSnapshot:
    """Take a health snapshot: of the ledger with the given session, if there is one."""
    engines = asyncio.gather(_read_redis(settings), _read_spool(settings))
    if session is None:
        redis, spool = await engines
        now, uses = datetime.now(UTC), ()
        known: dict[str, Any] = {
            "at": now,
            "postgres": PostgresState(reachable=False, error=error),
            "routes": _list_routes(routes, _Statistics(), {}, {}, now),
        }
    else:
        (redis, spool), known = await asyncio.gather(
            engines, _read_ledger(settings, session, routes)
        )
        uses = known.pop("uses")
    snapshot = HealthSnapshot(
        counts_lag_s=flush_interval(settings.sweep).total_seconds(),
        redis=redis,
        spool=spool,
        keys=key_states(uses, _load_ring(settings), spool.keys),
        **known,
    )
    return replace(snapshot, attention=find_attention(snapshot, snapshot.at))


def _load_ring(settings: Settings) -> KeyRing | None:
    """Load the encryption keys if this process has them. They are not needed for a snapshot."""
    try:
        return load_keys(settings, load_config(settings.config))
    except ConfigInvalid:
        return None


async def _read_redis(settings: Settings) -> RedisState:
    if settings.redis_url is None:
        return RedisState(reachable=False, error="GATEWAY_REDIS_URL is not set")
    redis = connect_redis(settings.redis_url.get_secret_value())
    try:
        known = await redis.info()
        jobs = await redis.zcard(QUEUE)
    except (RedisError, OSError, TimeoutError) as error:
        return RedisState(reachable=False, error=describe_redis(error))
    finally:
        await redis.aclose(close_connection_pool=True)
    memory = int(known["used_memory"])
    return RedisState(reachable=True, version=name_version(known), memory_bytes=memory, jobs=jobs)


async def _read_spool(settings: Settings) -> SpoolState:
    """Read the state of the spool on this machine's disk."""
    stock = await asyncio.to_thread(look_at, settings.data_dir / SPOOL_DIRECTORY)
    found = asdict(stock) | {"unreadable": list(stock.unreadable)}
    return SpoolState(host=socket.gethostname(), **found)


async def _read_ledger(
    settings: Settings, session: Session, routes: Iterable[Route]
) -> dict[str, Any]:
    """Return the fields of the snapshot that come from the ledger, with current names."""
    health = await read_health(session, settings.sweep * MISSED_ROUNDS)
    names = await load_names(session)
    routes = [route.identified(names) for route in routes]
    statistics = await _read_statistics(session, health.at)
    uses, items = await read_secret_uses(session), await count_items(session)
    sizes = await session.fetch(QUERIES["list_sizes"])
    wanted = [item.name for item in fields(ReconcileState)]
    known: dict[str, Any] = names.labelled(
        {
            "at": health.at,
            "postgres": PostgresState(
                reachable=True,
                schema_version=health.schema_version,
                version=health.version,
                size_bytes=sum(int(table["bytes"]) for table in sizes),
                connections=health.connections,
                max_connections=health.max_connections,
            ),
            "routes": _list_routes(routes, statistics, uses, items, health.at),
            "alerts": await list_alerts(session),
            "pauses": list(health.pauses),
            "handlers": await _list_handlers(session, health, statistics),
            "workers": list(health.workers),
            "reconciles": [
                ReconcileState(**{name: run[name] for name in wanted}) for run in health.reconciles
            ],
            "reloads": [ReloadState(**row) for row in await session.fetch(QUERIES["list_reloads"])],
            "rejected": await _list_rejected(session, health.at, statistics),
            "bulk": await _list_bulk(session),
        }
    )
    return known | {"uses": await count_keys(session)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statistics:
    """Counts and run times of the last hour by route and handler.

    The handler is empty for the requests of the route.
    """

    hour: Mapping[HandlerKey, Mapping[str, int]] = field(default_factory=dict)
    minutes: Mapping[HandlerKey, Mapping[str, int]] = field(default_factory=dict)
    times: Mapping[HandlerKey, Mapping[int, int]] = field(default_factory=dict)
    last_at: Mapping[HandlerKey, Mapping[str, datetime]] = field(default_factory=dict)
    """The last time of each outcome, since statistics began."""

    def took_ms(self, key: HandlerKey, share: float) -> float | None:
        seconds = percentile(self.times.get(key, {}), share)
        return None if seconds is None else round(seconds * 1000, 2)


async def _read_statistics(ledger: Executor, now: datetime) -> _Statistics:
    hour: dict[HandlerKey, dict[str, int]] = defaultdict(dict)
    minutes: dict[HandlerKey, dict[str, int]] = defaultdict(dict)
    times: dict[HandlerKey, dict[int, int]] = {}
    last_at: dict[HandlerKey, dict[str, datetime]] = defaultdict(dict)
    for row in await ledger.fetch(QUERIES["sum_tallies"], now - HOUR, now - MINUTES):
        key = row["route"], row["handler"]
        hour[key][row["outcome"]] = row["n"]
        minutes[key][row["outcome"]] = row["lately"]
    for row in await ledger.fetch(QUERIES["sum_times"], now - HOUR, [ACKNOWLEDGED, *RUNS]):
        buckets = enumerate(row["times"])
        times[row["route"], row["handler"]] = {bucket: n for bucket, n in buckets if n}
    for row in await ledger.fetch(QUERIES["list_totals"]):
        last_at[row["route"], row["handler"]][row["outcome"]] = row["last_at"]
    return _Statistics(hour=hour, minutes=minutes, times=times, last_at=last_at)


def _list_routes(
    routes: Iterable[Route],
    statistics: _Statistics,
    uses: Mapping[tuple[str, str], Mapping[str, Any]],
    items: Mapping[str, int],
    now: datetime,
) -> list[RouteState]:
    """Return the configured routes, and others with statistics or rejected items."""
    configured = {route.name: route for route in routes}
    counted = {
        route for route, handler in (*statistics.hour, *statistics.last_at) if handler == REQUESTS
    }
    found = []
    for name in sorted({*configured, *counted, *items}):
        route, key = configured.get(name), (name, REQUESTS)
        in_hour, lately = statistics.hour.get(key, {}), statistics.minutes.get(key, {})
        last_at = statistics.last_at.get(key, {})
        refusals = {code: at for code, at in last_at.items() if code.isupper()}
        last_code = max(refusals, key=lambda code: (refusals[code], code), default=None)
        hour = _count_requests(in_hour)
        found.append(
            RouteState(
                route=name,
                last_hour=hour.accepted,
                last_event_at=last_at.get("accepted"),
                last_refused_at=None if last_code is None else refusals[last_code],
                last_refused_as=last_code,
                minutes=_count_requests(lately),
                hour=hour,
                refused_as=_refused_as(lately),
                shed=in_hour.get(Overloaded.code, 0),
                rejected_items=items.get(name, 0),
                retries=None if route is None else route.provider.retries,
                p50_ms=statistics.took_ms(key, 0.5),
                p99_ms=statistics.took_ms(key, 0.99),
                secrets=[] if route is None else _list_secrets(route, uses, now),
            )
        )
    return found


def _count_requests(counts: Mapping[str, int]) -> RequestCounts:
    answered = {answer: counts.get(answer, 0) for answer in ANSWERS}
    return RequestCounts(**answered, refused=sum(_refused_as(counts).values()))


def _refused_as(counts: Mapping[str, int]) -> dict[str, int]:
    return {code: n for code, n in counts.items() if code not in NOT_REFUSED and n}


def _list_secrets(
    route: Route, uses: Mapping[tuple[str, str], Mapping[str, Any]], now: datetime
) -> list[SecretState]:
    """Return the secrets by their references, in the order of the file."""
    kept = ("first_used_at", "last_used_at", "uses")
    return [
        SecretState(
            secret=str(ref),
            expires_at=ref.expires_at,
            expired=ref.has_expired(now),
            **{name: use[name] for name in kept if use},
        )
        for ref in route.secrets
        for use in [uses.get((route.name, str(ref)), {})]
    ]


async def _list_handlers(
    session: Session, health: LedgerHealth, statistics: _Statistics
) -> list[HandlerState]:
    """Return the handlers that have unfinished deliveries, or ran in the last hour."""
    ran = {key for key in statistics.hour if key[1] != REQUESTS}
    found = {*ran, *health.backlogs, *health.running, *health.unknown_effects}
    rows = await session.fetch(QUERIES["list_exhausted"])
    free_at = {(row["route"], row["handler"]): row["free_at"] for row in rows}
    rows = await session.fetch(QUERIES["count_blocked"])
    blocked = {(row["route"], row["handler"]): (row["keys"], row["waiting"]) for row in rows}
    return [
        _handler(key, health, statistics, free_at.get(key), blocked.get(key, (0, 0)))
        for key in sorted(found)
    ]


def _handler(
    key: HandlerKey,
    health: LedgerHealth,
    statistics: _Statistics,
    free_at: datetime | None,
    blocked: tuple[int, int],
) -> HandlerState:
    """Return the state of a handler. Its note gives every reason why deliveries wait."""
    backlog, effects = health.backlog(key), health.unknown_effects.get(key, 0)
    counts = statistics.hour.get(key, {})
    done, retried, died = (counts.get(outcome, 0) for outcome in RUNS)
    runs, failed = done + retried + died, retried + died
    capped = {
        "pending": backlog.most in (backlog.due, backlog.later, backlog.held),
        "dead": backlog.dead == backlog.most,
        "unknown_effects": effects == MOST_COUNTED,
    }
    is_paused = any(pause.holds(*key) for pause in health.pauses)
    is_orphaned = health.is_orphaned(key)
    notes = []
    if is_paused:
        notes.append("paused")
    if is_orphaned:
        notes.append("orphaned: no worker has this handler")
    if blocked[1]:
        notes.append(f"dead deliveries block {blocked[0]} keys, {blocked[1]} wait")
    if free_at is not None and backlog.oldest_due_at is not None:
        wait_s = max((free_at - health.at).total_seconds(), 0)
        notes.append(f"at its rate: the next one starts in {wait_s:.0f} s")
    if backlog.suspects:
        notes.append(f"{backlog.suspects:,} run alone: a worker was lost twice while they ran")
    if effects:
        more = "+" if capped["unknown_effects"] else ""
        count = f"{effects:,}{more} effects" if effects > 1 else "an effect"
        notes.append(f"{count} of unknown outcome")
    return HandlerState(
        route=key[0],
        handler=key[1],
        pending=backlog.pending,
        oldest_due_at=backlog.oldest_due_at,
        waiting_turn=backlog.held,
        suspects=backlog.suspects,
        running=health.running.get(key, 0),
        dead=backlog.dead,
        dead_lately=backlog.dead_lately,
        unknown_effects=effects,
        capped=[state for state, is_capped in capped.items() if is_capped],
        blocked_keys=blocked[0],
        orphaned=is_orphaned,
        paused=is_paused,
        runs=runs,
        failed=failed,
        retried=retried,
        success=None if not runs else round(1 - failed / runs, 4),
        p50_ms=statistics.took_ms(key, 0.5),
        p99_ms=statistics.took_ms(key, 0.99),
        note="; ".join(notes) or None,
    )


async def _list_rejected(
    session: Session, now: datetime, statistics: _Statistics
) -> list[RejectedState]:
    """Group the rejected requests of the last hour by cause, except released ones."""
    groups = await group_rejected(session, Chosen(since=now - HOUR), MOST_CAUSES)
    return [
        RejectedState(
            **{name: group[name] for name in ("route", "code", "cause", "detail", "last_at")},
            refused=max(
                statistics.hour.get((group["route"], REQUESTS), {}).get(group["code"], 0),
                group["count"],
            ),
            kept=group["count"] - group["released"],
        )
        for group in groups
        if group["count"] > group["released"]
    ]


async def _list_bulk(session: Session) -> list[BulkOperation]:
    """Return the running ones among the newest bulk operations."""
    newest = await list_bulk(session, None, NEWEST_BULK)
    return [bulk for bulk in newest if bulk["status"] is BulkStatus.RUNNING]
