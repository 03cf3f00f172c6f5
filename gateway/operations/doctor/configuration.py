"""Check that settings, routes and handlers can be read, and report every problem at once."""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from arq.connections import ArqRedis
from redis.exceptions import RedisError, ResponseError

from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.units import format_count
from gateway.config.development import read_up
from gateway.config.registry import Registry, load_registry
from gateway.config.routes import Config, load_config
from gateway.config.settings import Settings, discover, load_settings
from gateway.operations.doctor.credentials import LOCAL
from gateway.operations.doctor.finding import Finding, Installation, ok, problem, warning
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
    return [*findings, _judge(url, answer)]


def _scheme(url: str) -> Iterator[Finding]:
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in LOCAL:
        yield warning(
            PUBLIC, f"{url} is not https", "providers demand it, and bodies are readable without"
        )


def _judge(url: str, answer: httpx.Response) -> Finding:
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
    findings = [ok(REDIS, f"reachable, version {name_version(known)}")]
    findings += _persistence(known, await _saves(redis))
    findings += _eviction(known)
    findings += _depth(await redis.zcard(QUEUE), settings)
    return findings


async def _saves(redis: ArqRedis) -> bool | None:
    """Return whether snapshots are enabled, or None if the server does not allow the question."""
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


SETTINGS = "settings"
ROUTES = "routes"
HANDLERS = "handlers"


def read_installation(environ: Mapping[str, str]) -> tuple[Installation, list[Finding]]:
    """Read as much of the installation as possible, with a finding for each problem."""
    settings, findings = _read_settings(environ)
    config, registry = None, None
    try:
        config = load_config(settings.config)
        registry = load_registry(config)
    except ConfigInvalid as error:
        findings += [_wrong(HANDLERS if config else ROUTES, p) for p in error.problems]
    return (
        Installation(settings=settings, environ=environ, config=config, registry=registry),
        findings,
    )


def _read_settings(environ: Mapping[str, str]) -> tuple[Settings, list[Finding]]:
    """Read the settings without the invalid variables, so that all others can still be checked."""
    try:
        return discover(load_settings(environ)), []
    except ConfigInvalid as error:
        wrong = {told.key for told in error.problems}
        findings = [_wrong(SETTINGS, told) for told in error.problems]
    rest = {name: value for name, value in environ.items() if name not in wrong}
    return discover(load_settings(rest)), findings


def _wrong(about: str, told: Problem) -> Finding:
    where = told.file if told.line is None else f"{told.file}:{told.line}"
    return problem(about, f"{where}: {told.key}: found {told.found}", f"expected {told.expected}")


def check_configuration(installation: Installation) -> Iterator[Finding]:
    """Report the settings, routes and handlers that were read."""
    yield from _urls(installation)
    yield from _admin_token(installation.settings)
    if installation.config is not None:
        yield _routes(installation.config)
        yield from _allowed(installation.settings, installation.config)
        yield from _unenforced(installation.config)
    if installation.registry is not None:
        yield from _handlers(installation.registry)


def _urls(installation: Installation) -> Iterator[Finding]:
    settings = installation.settings
    is_up = read_up(settings.data_dir) is not None
    for variable, url in (
        ("GATEWAY_DATABASE_URL", settings.database_url),
        ("GATEWAY_REDIS_URL", settings.redis_url),
    ):
        if url is None:
            yield problem(
                SETTINGS,
                f"{variable} is not set",
                "`gateway serve` and `gateway worker` need it; `gateway up` brings its own",
            )
        elif variable in installation.environ or not is_up:
            yield ok(SETTINGS, f"{variable} is set")
        else:
            yield ok(SETTINGS, f"{variable} is that of the running `gateway up`")


def _admin_token(settings: Settings) -> Iterator[Finding]:
    if settings.admin_token is None:
        yield ok(SETTINGS, "GATEWAY_ADMIN_TOKEN is not set: there is no Admin API")
        return
    if len(set(settings.admin_token.get_secret_value())) < 8:
        yield warning(
            SETTINGS,
            "GATEWAY_ADMIN_TOKEN has fewer than 8 different characters",
            "make one that nobody guesses: `openssl rand -hex 32`",
        )
        return
    yield ok(SETTINGS, "GATEWAY_ADMIN_TOKEN is set: there is an Admin API")


def _routes(config: Config) -> Finding:
    names = ", ".join(route.name for route in config.routes)
    return ok(ROUTES, f"{config.file}: {format_count(len(config.routes), 'route')} ({names})")


def _allowed(settings: Settings, config: Config) -> Iterator[Finding]:
    """Warn if `allow` is used behind a proxy that is not trusted.

    `serve` has no TLS. If senders use https, a proxy terminates it, and requests come from its
    address.
    """
    listed = [route.name for route in config.routes if route.allow is not None]
    behind = (settings.public_url or "").startswith("https://")
    if listed and behind and settings.trusted_proxies is None:
        yield warning(
            ROUTES,
            f"{', '.join(listed)[:80]}: `allow` sees the address of your proxy, not the senders'",
            "name the proxy in GATEWAY_TRUSTED_PROXIES",
        )


def _unenforced(config: Config) -> Iterator[Finding]:
    for route in config.doors:
        if not route.enforce:
            yield warning(
                ROUTES,
                f"{route.name} has enforce: false, which is ignored outside of `gateway up`",
                "what is not verified is refused in production; take it out of the file",
            )


def _handlers(registry: Registry) -> Iterator[Finding]:
    count = len(registry.subscriptions)
    if not count:
        yield warning(
            HANDLERS,
            "no route has a handler: events are kept, and nothing is run",
            "add a module to `handlers` of a route: `gateway new handler` makes one",
        )
    else:
        yield ok(HANDLERS, f"{format_count(count, 'handler loads', 'handlers load')}")
