"""Examine the whole installation: the findings of `gateway doctor`.

The groups of checks are independent, so that a failing one does not hide the others.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from redis.exceptions import RedisError

from gateway.base.errors import StorageUnavailable
from gateway.base.names import Names
from gateway.base.units import format_duration, format_roughly
from gateway.config.routes import Route
from gateway.ledger.connection import (
    QUERIES,
    TROUBLE,
    Connection,
    close_quietly,
    connect,
    describe,
)
from gateway.ledger.health import WorkerState
from gateway.ledger.names import load_names
from gateway.operations.encryption import describe_key, in_use
from gateway.operations.health.attention import RULES
from gateway.operations.health.configuration import check_configuration, check_credentials
from gateway.operations.health.environment import (
    HARMLESS,
    REDIS,
    SPOOL,
    check_clock,
    check_machine,
    check_postgres_encryption,
    check_public_url,
    check_redis,
    check_redis_encryption,
    postgres_time,
    redis_time,
)
from gateway.operations.health.findings import Finding, Installation, ok, problem, warning
from gateway.operations.health.postgres import POSTGRES, check_postgres, is_usable
from gateway.operations.health.reading import read_snapshot
from gateway.operations.health.snapshot import HealthSnapshot
from gateway.queue.connection import connect_redis, describe_redis
from gateway.worker.sweeper import VERSION

WORK: Final = "work"
WORKERS: Final = "workers"
RETENTION: Final = "retention"
KEYS: Final = "keys"
LOOKED_AT: Final = 10_000
OLD_DEAD: Final = timedelta(days=7)
LATE: Final = timedelta(days=1)
"""Tolerated delay of pruning. The sweep examines events again only every few hours."""

MISSED_RECONCILES: Final = 3
SEE_REFUSED: Final = "see why: `gateway rejected --route {}`, and the log of `gateway serve`"

PASTE: Final = {
    "stripe": "Stripe: Dashboard, Developers, Webhooks, Add endpoint",
    "github": "GitHub: Settings, Webhooks, Add webhook, content type application/json",
}


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
    """Return the findings about the server, and those of the health snapshot."""
    server, ledger = [], None
    if installation.settings.database_url is not None:
        url = installation.settings.database_url.get_secret_value()
        try:
            # Keep the default isolation, which is checked.
            connection = await connect(url, name="gateway doctor", isolation=None)
        except StorageUnavailable as error:
            server = [_away(str(error))]
        else:
            try:
                server = await check_postgres(installation, connection)
                server += await check_clock(installation, POSTGRES, postgres_time(connection))
                if is_usable(server):
                    ledger = await _check_ledger(installation, connection)
                server += await check_postgres_encryption(url, connection)
            except TROUBLE as error:
                server = [_away(f"Postgres did not answer to the end: {describe(error)}")]
            finally:
                await close_quietly(connection)
    if ledger is None:
        status = await read_snapshot(installation.settings, None, installation.routes)
        ledger = [*_attention(status)]
    return server, ledger


def _away(error: str) -> Finding:
    advice = "is it running, does GATEWAY_DATABASE_URL name it, does the network let it through?"
    return problem(POSTGRES, error, advice)


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


async def _check_ledger(installation: Installation, connection: Connection) -> list[Finding]:
    """Run all checks of the ledger's contents."""
    names = await load_names(connection)
    if installation.config is not None:
        installation = replace(installation, config=installation.config.identified(names))
    status = await read_snapshot(installation.settings, connection, installation.routes)
    findings = [*_attention(status), *_workers(installation, status.workers)]
    for route in installation.routes:
        findings += await _route(installation, connection, route, status)
    findings += _secrets(status)
    findings += _reconciles(installation, status)
    findings += await _dead(installation, connection, status, names)
    findings += await _retention(installation, connection)
    findings += [ok(KEYS, describe_key(key)) for key in status.keys if in_use(key)]
    findings += await _past(installation, connection)
    return findings


def _attention(status: HealthSnapshot) -> Iterator[Finding]:
    """Report what `gateway status` shows as needing attention."""
    found = [
        Finding(level=line.level, about=rule.about, found=line.text, advice=line.advice)
        for rule in RULES
        if rule.about is not None
        for line in rule.find(status, status.at)
    ]
    yield from found
    headings = {finding["about"] for finding in found}
    if status.postgres.reachable and WORK not in headings:
        yield ok(WORK, "nothing is dead, behind, orphaned or paused")
    if SPOOL not in headings:
        yield ok(SPOOL, "empty")


def _workers(installation: Installation, workers: Sequence[WorkerState]) -> Iterator[Finding]:
    if not workers:
        return  # already reported by _attention
    yield ok(WORKERS, f"{len(workers)} alive")
    for worker in workers:
        if worker.version != VERSION:
            yield warning(
                WORKERS,
                f"{_name(worker)} runs version {worker.version or 'of before'}, this is {VERSION}",
                "fine while a deploy is under way; else restart it with the new code",
            )
    yield from _handlers(installation, workers)


def _handlers(installation: Installation, workers: Sequence[WorkerState]) -> Iterator[Finding]:
    served = {name for worker in workers for name in worker.handlers}
    for worker in workers:
        if lacking := sorted(served - set(worker.handlers)):
            yield warning(
                WORKERS,
                f"{_name(worker)} lacks {_some(lacking)}, which others have",
                "fine while a deploy is under way; else it runs other code",
            )
    if installation.registry is not None:
        ours = {f"{s.route_label} {s.label}" for s in installation.registry.subscriptions}
        if nowhere := sorted(ours - served):
            yield problem(
                WORKERS, f"no worker has {_some(nowhere)}", "restart the workers with this code"
            )


def _name(worker: WorkerState) -> str:
    return f"the worker on {worker.host}, pid {worker.pid},"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


async def _route(
    installation: Installation,
    connection: Connection,
    route: Route,
    status: HealthSnapshot,
) -> list[Finding]:
    about = f"route {route.label}"
    state = next(state for state in status.routes if state.route == route.label)
    last_at, refused_at = state.last_event_at, state.last_refused_at
    if last_at is None and await connection.fetchval(QUERIES["has_events"], route.name):
        return [ok(about, "has had events, the last one before they were counted")]
    if refused_at is not None and (last_at is None or refused_at > last_at):
        since = "and no event was accepted since" if last_at else "and no event was ever accepted"
        ago = format_roughly(status.at - refused_at)
        told = f"a request was refused as {state.last_refused_as} {ago} ago, {since}"
        return [warning(about, told, SEE_REFUSED.format(route.label))]
    if last_at is not None:
        return [ok(about, f"the last event came {format_roughly(status.at - last_at)} ago")]
    if route.provider.is_queue:
        return [ok(about, "has had no job yet")]
    where = PASTE.get(route.provider.name, "the sender's settings")
    url = installation.base_url + route.path
    return [warning(about, "has never had an event", f"paste {url} into {where}")]


def _secrets(status: HealthSnapshot) -> Iterator[Finding]:
    """Report unused secrets. Expired and expiring ones are reported with the credentials."""
    for route in status.routes:
        about = f"route {route.route}"
        for secret in route.never_used:
            yield warning(
                about,
                f"{secret.secret} has never verified a request, while another secret has",
                "is it what the sender signs with, and was it changed there? else take it out",
            )
        for secret in route.secrets:
            if route.can_go(secret, status.at) and secret.last_used_at is not None:
                ago = format_roughly(status.at - secret.last_used_at)
                yield warning(
                    about,
                    f"{secret.secret} was last used {ago} ago, another secret since",
                    "the sender has changed to the other one: take it out of routes.yaml",
                )


def _reconciles(installation: Installation, status: HealthSnapshot) -> Iterator[Finding]:
    """Check that scheduled reconciles run. A failed one is reported by _attention."""
    last = {run.route: run.finished_at or run.started_at for run in status.reconciles}
    for route in installation.routes:
        if route.reconcile is None or route.reconcile.every is None:
            continue
        about, every = f"route {route.label}", format_duration(route.reconcile.every)
        at = last.get(route.label)
        ago = "" if at is None else f"{format_roughly(status.at - at)} ago"
        if at is None:
            yield warning(
                about, f"is to be reconciled every {every}, and never was", "is a worker alive?"
            )
        elif status.at - at > MISSED_RECONCILES * route.reconcile.every:
            told = f"is to be reconciled every {every}; the last was {ago}"
            yield warning(about, told, "is a worker alive, and what does its log say?")
        else:
            yield ok(about, f"was reconciled {ago}")


async def _dead(
    installation: Installation, connection: Connection, status: HealthSnapshot, names: Names
) -> list[Finding]:
    row = await connection.fetchrow(QUERIES["find_oldest_dead"])
    if row is None or status.at - row["finished_at"] < OLD_DEAD:
        return []
    kept = {route.name: route.retention.dead for route in installation.routes}
    age = format_roughly(status.at - row["finished_at"])
    told = f"the oldest dead letter ({names.handlers.label(row['handler'])}) has waited for {age}"
    if row["route"] in kept:
        told += f"; after {format_duration(kept[row['route']])} it is given up (retention.dead)"
    return [warning(WORK, told, "decide: `gateway replay` or `gateway discard`")]


async def _past(installation: Installation, connection: Connection) -> list[Finding]:
    """Report events stored before their route was encrypted, from a bounded search."""
    routes = {route.name: route for route in installation.routes if route.encrypt}
    encrypted = {name: route.retention.payload for name, route in routes.items()}
    if not encrypted:
        return []
    rows = await connection.fetch(
        QUERIES["find_unsealed"], list(encrypted), max(encrypted.values()), LOOKED_AT
    )
    return [
        warning(
            f"route {routes[row['route']].label}",
            "has events of before it was encrypted, which are stored as they came",
            "encrypt them, too: `gateway rekey`",
        )
        for row in rows
    ]


async def _retention(installation: Installation, connection: Connection) -> list[Finding]:
    routes = installation.routes
    if not routes:
        return []
    [row] = await connection.fetch(
        QUERIES["count_overdue"],
        [route.name for route in routes],
        [route.retention.key for route in routes],
        LATE,
    )
    findings = await _partitions(connection)
    if row["n"]:
        findings += [
            warning(
                RETENTION,
                f"events of {row['oldest_at']:%Y-%m-%d} should have been forgotten",
                "workers prune: is one alive, and does its log say prune_failed?",
            )
        ]
    return findings or [ok(RETENTION, "keeps up")]


async def _partitions(connection: Connection) -> list[Finding]:
    """Check the daily partitions of payloads and attempts."""
    [row] = await connection.fetch(QUERIES["describe_partitions"], LATE)
    findings = []
    if row["oldest"] is not None:
        findings += [
            warning(
                RETENTION,
                f"payloads or attempts of {row['oldest']} should have been dropped",
                "workers drop them: is one alive, and does its log say partition_in_use, since a"
                " transaction is open that has read them?",
            )
        ]
    if row["is_misfiled"]:
        findings += [
            warning(
                RETENTION,
                "payloads or attempts came on a day for which nobody had made a table",
                "nothing is lost: a worker puts them in order. Is one alive?",
            )
        ]
    return findings
