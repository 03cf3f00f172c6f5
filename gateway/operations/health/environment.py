"""Check what the gateway depends on: its public URL, Redis, connections, clocks and the machine."""

import resource
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx
from arq.connections import ArqRedis
from redis.exceptions import RedisError, ResponseError

from gateway.base.networks import split_hosts
from gateway.base.redis_urls import read_redis_url
from gateway.base.units import format_roughly, format_size_roughly
from gateway.config.settings import Settings
from gateway.http.listening import OTHER_FILES
from gateway.ledger.connection import QUERIES, Connection
from gateway.ledger.servers import is_pooled
from gateway.operations.health.findings import (
    LOCAL,
    Check,
    Finding,
    Installation,
    ok,
    problem,
    run_checks,
    warning,
)
from gateway.queue.connection import name_version
from gateway.queue.wake_ups import QUEUE

PUBLIC: Final = "public URL"
ANSWER_S: Final = 5.0
ALIVE: Final = {"status": "alive"}


async def check_public_url(installation: Installation) -> list[Finding]:
    """Request /healthz at the public URL, like a sender."""
    url = installation.settings.public_url
    if url is None:
        return [
            warning(
                PUBLIC,
                "GATEWAY_PUBLIC_URL is not set: whether senders get through cannot be checked",
                "set it to what they call, such as https://hooks.example.com",
            )
        ]
    findings = [*_scheme(url)]
    try:
        async with httpx.AsyncClient(timeout=ANSWER_S, follow_redirects=False) as http:
            answer = await http.get(f"{url}/healthz")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        told = f"{url} does not answer: {error or type(error).__name__}"
        advice = (
            "is DNS, the proxy and its certificate in order? Some networks cannot call themselves"
        )
        return [*findings, problem(PUBLIC, told, advice)]
    return [*findings, _judge_answer(url, answer)]


def _scheme(url: str) -> Iterator[Finding]:
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in LOCAL:
        yield warning(
            PUBLIC, f"{url} is not https", "providers demand it, and bodies are readable without"
        )


def _judge_answer(url: str, answer: httpx.Response) -> Finding:
    asked = f"{url}/healthz"
    if answer.is_redirect:
        to = answer.headers.get("location", "elsewhere")
        return problem(
            PUBLIC,
            f"{asked} redirects to {to}",
            "senders do not follow: name the place itself, also in their settings",
        )
    if answer.status_code != httpx.codes.OK:
        return problem(
            PUBLIC,
            f"{asked} answers {answer.status_code}",
            "let the proxy pass every path on, without its prefix, and look whether serve runs",
        )
    try:
        is_ours = answer.json() == ALIVE
    except ValueError:
        is_ours = False
    if not is_ours:
        return problem(
            PUBLIC, f"{asked} answers, but not as a gateway", "the proxy leads somewhere else"
        )
    return ok(PUBLIC, f"{asked} answers as a gateway")


REDIS: Final = "Redis"
FULL: Final = 0.9
HARMLESS: Final = "nothing is lost by it: workers find their work in Postgres, a sweep later"


async def check_redis(settings: Settings, redis: ArqRedis) -> list[Finding]:
    """Run all checks of the server. Raises RedisError, OSError and TimeoutError."""
    known: dict[str, Any] = await redis.info()
    keeps = "appendonly" if known.get("aof_enabled") else "snapshots"
    row = {
        "version": name_version(known),
        "keeps": keeps,
        "saves": bool(known.get("aof_enabled")) or await _saves(redis),
        "policy": known.get("maxmemory_policy", "noeviction"),
        "most": (most := int(known.get("maxmemory", 0))),
        "is_full": most and int(known["used_memory"]) >= most * FULL,
        "used": known["used_memory_human"],
        "allowed": known.get("maxmemory_human", most),
        "jobs": (jobs := await redis.zcard(QUEUE)),
        "is_deep": jobs >= settings.queue_depth,
    }
    return [*run_checks(REDIS, REDIS_CHECKS, row)]


async def _saves(redis: ArqRedis) -> bool | None:
    """Return whether snapshots are enabled, or None if the server does not allow the question."""
    try:
        return bool((await redis.config_get("save")).get("save"))
    except (ResponseError, RedisError):
        return None


REDIS_CHECKS: Final = (
    Check(lambda _: True, "ok", "reachable, version {version}"),
    Check(lambda r: r["saves"], "ok", "keeps its data ({keeps})"),
    Check(
        lambda r: r["saves"] is False,
        "warning",
        "keeps nothing over a restart",
        f"set appendonly yes; {HARMLESS}",
    ),
    Check(
        lambda r: r["policy"] != "noeviction" and r["most"],
        "problem",
        "maxmemory-policy is {policy}: wake-ups may be thrown away",
        f"set maxmemory-policy noeviction; {HARMLESS}",
    ),
    Check(
        lambda r: r["policy"] != "noeviction" and not r["most"],
        "warning",
        "maxmemory-policy is {policy}, though without a maxmemory",
        f"set maxmemory-policy noeviction; {HARMLESS}",
    ),
    Check(lambda r: r["policy"] == "noeviction", "ok", "throws nothing away (noeviction)"),
    Check(
        lambda r: r["is_full"],
        "warning",
        "{used} of {allowed} are in use",
        f"raise maxmemory, or find out who else fills it; {HARMLESS}",
    ),
    Check(
        lambda r: r["is_deep"],
        "warning",
        "{jobs:,} wake-ups wait and none is added any more",
        "no worker takes them: are workers alive, and do they use the same GATEWAY_REDIS_URL?",
    ),
)


LOCAL_HOSTS: Final = LOCAL | {""}
"""An empty host is a Unix socket."""
VERIFIED: Final = "verify-full"
DEMANDED: Final = frozenset({"require", "verify-ca", VERIFIED})
"""With any other mode, asyncpg falls back to plain text if the server has no TLS."""

READ: Final = "anyone on the way can read and change it"
FAKED: Final = "encrypted, but anyone on the way can pose as the server"


async def check_postgres_encryption(url: str, connection: Connection) -> list[Finding]:
    """Check the connection to Postgres, or to the pooler in front of it."""
    hosts, options = _hosts(url), parse_qs(urlsplit(split_hosts(url)[0]).query)
    mode = options.get("sslmode", ["prefer"])[-1]
    is_encrypted = mode in DEMANDED
    if not is_pooled(connection):
        is_encrypted = bool(await connection.fetchval(QUERIES["is_encrypted"]))
    advice = f"GATEWAY_DATABASE_URL=...?sslmode={VERIFIED}&sslrootcert=/path/ca.pem"
    return list(_judge_connection("Postgres", hosts, is_encrypted, mode == VERIFIED, advice))


def check_redis_encryption(url: str) -> list[Finding]:
    """Check the connection to Redis and its Sentinels."""
    place = read_redis_url(url)
    hosts = [host for host, _ in place.hosts]
    is_verified = (
        place.options.get("ssl_cert_reqs") != "none"
        and place.options.get("ssl_check_hostname") is not False
    )
    advice = "GATEWAY_REDIS_URL=rediss://...?ssl_ca_certs=/path/ca.pem"
    return list(_judge_connection("Redis", hosts, place.is_encrypted, is_verified, advice))


def _judge_connection(
    what: str, hosts: Sequence[str], is_encrypted: bool, is_verified: bool, advice: str
) -> Iterator[Finding]:
    far = ", ".join(host for host in hosts if host not in LOCAL_HOSTS and not host.startswith("/"))
    if not far:
        return
    if not is_encrypted:
        yield warning(what, f"the way to {far} is not encrypted: {READ}", advice)
    elif not is_verified:
        yield warning(what, f"the way to {far} is {FAKED}", advice)
    else:
        yield ok(what, f"the way to {far} is encrypted, and the server has to prove who it is")


def _hosts(url: str) -> list[str]:
    """Return the hosts of a Postgres URL. An empty host is a Unix socket."""
    parts = [urlsplit(one) for one in split_hosts(url)]
    named = parse_qs(parts[0].query).get("host", [""])[-1].split(",")
    return [part.hostname for part in parts if part.hostname] or named


CLOCK: Final = "clock"
NOTICEABLE: Final = timedelta(seconds=2)

Ask = Callable[[], Awaitable[datetime]]


async def check_clock(installation: Installation, name: str, ask: Ask) -> list[Finding]:
    """Measure the clock difference to a server, assuming that both directions take equally long."""
    before = installation.now()
    theirs = await ask()
    ours = before + (installation.now() - before) / 2
    return [*_judge_clock(name, ours - theirs, installation.tolerance)]


def _judge_clock(name: str, ahead: timedelta, tolerance: timedelta) -> Iterator[Finding]:
    by = abs(ahead)
    side = "ahead of" if ahead > timedelta() else "behind"
    told = f"this host is {format_roughly(by)} {side} {name}"
    if by < NOTICEABLE:
        yield ok(CLOCK, f"this host and {name} agree")
    elif by >= tolerance / 2:
        yield problem(
            CLOCK,
            f"{told}: signed requests are refused as stale from {format_roughly(tolerance)} on",
            "set both by NTP (chrony, systemd-timesyncd), then look again",
        )
    else:
        yield warning(CLOCK, told, "set both by NTP (chrony, systemd-timesyncd)")


def postgres_time(connection: Connection) -> Ask:
    """Return a function that reads the clock of Postgres."""

    async def ask() -> datetime:
        now: datetime = await connection.fetchval("select clock_timestamp()")
        return now

    return ask


def redis_time(redis: ArqRedis) -> Ask:
    """Return a function that reads the clock of Redis."""

    async def ask() -> datetime:
        seconds, microseconds = await redis.time()
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)

    return ask


MACHINE: Final = "this machine"
SPOOL: Final = "spool"


def check_machine(installation: Installation) -> list[Finding]:
    """Run the checks that only work on this machine. Blocking, so call it in a thread."""
    return [*_data_dir(installation), *_spool(installation), *_descriptors(installation)]


def _data_dir(installation: Installation) -> Iterator[Finding]:
    settings = installation.settings
    directory = settings.data_dir.absolute()
    there = _nearest(directory)
    reason = _cannot_write(there)
    if reason is not None:
        yield problem(
            MACHINE,
            f"{directory} cannot be written ({reason}): nothing can be spooled",
            "give it to the account that runs serve, or name another GATEWAY_DATA_DIR",
        )
        return
    free = shutil.disk_usage(there).free
    room = format_size_roughly(free)
    if free < settings.spool_size:
        yield warning(
            MACHINE,
            f"{directory} has {room} left, and the spool may take"
            f" {format_size_roughly(settings.spool_size)}",
            "make room, or lower GATEWAY_SPOOL_SIZE",
        )
    else:
        yield ok(MACHINE, f"{directory} can be written, {room} are free")


def _nearest(directory: Path) -> Path:
    """Return the directory, or its nearest parent that exists."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return directory


def _cannot_write(directory: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _spool(installation: Installation) -> Iterator[Finding]:
    never_again = [route.name for route in installation.routes if route.spools]
    if never_again and not installation.settings.spool_size:
        yield warning(
            SPOOL,
            f"GATEWAY_SPOOL_SIZE is 0: while Postgres is away, events of"
            f" {', '.join(never_again)} are lost, whose sender does not retry",
            "set it to some GiB",
        )


def _descriptors(installation: Installation) -> Iterator[Finding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = installation.settings.max_connections + OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        yield warning(
            MACHINE,
            f"at most {hard:,} files may be open, GATEWAY_MAX_CONNECTIONS needs {needed:,}",
            "raise the hard limit (LimitNOFILE, ulimit -Hn), or lower the setting",
        )
    else:
        yield ok(MACHINE, "enough files may be open")
