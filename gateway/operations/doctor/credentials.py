"""Check that connections to servers are encrypted, and that their certificates are verified."""

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import parse_qs, urlsplit

from gateway.base.errors import ConfigInvalid
from gateway.base.networks import split_hosts
from gateway.base.redis_urls import read_redis_url
from gateway.base.secrets import SecretRef, SecretUnusable, resolve, resolve_token
from gateway.config.development import read_secrets, stand_ins
from gateway.config.routes import (
    Route,
    check_alerts,
    check_destinations,
    check_hook_keys,
    check_keys,
    valid_references,
)
from gateway.ledger.connection import QUERIES, Connection
from gateway.ledger.servers import is_pooled
from gateway.operations.doctor.finding import Finding, Installation, ok, problem, warning
from gateway.operations.status.engines import find_expiries

SHORT: Final = 16
"""A secret with fewer characters can be guessed from one signed request."""

TELLING: Final = {
    "sk_": "a Stripe API key",
    "rk_": "a Stripe API key",
    "pk_": "a Stripe publishable key",
    "ghp_": "a GitHub token",
    "github_pat_": "a GitHub token",
    "gho_": "a GitHub token",
}
KEYS: Final = "keys"
LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def check_credentials(installation: Installation) -> Iterator[Finding]:
    """Check the secrets of every route, without showing them."""
    values: dict[bytes, list[str]] = {}
    for route in installation.routes:
        found = list(_of_route(installation, route, values))
        yield from found
        if route.secrets and not found:
            count = len(route.secrets)
            what = "token" if route.provider.is_queue else "secret"
            yield ok(_about(route), f"{count} {what}{'s' if count > 1 else ''} in order")
        yield from _api_key(installation, route)
    yield from _keys(installation)
    yield from _of_workers(installation)
    yield from _shared(values)
    yield from _made_up(installation)


def _of_route(
    installation: Installation, route: Route, values: dict[bytes, list[str]]
) -> Iterator[Finding]:
    development = read_secrets(installation.settings.dev_secrets)
    read = resolve_token if route.provider.is_queue else resolve
    yield from _expiries(installation, route)
    for ref in route.secrets:
        if ref.has_expired(installation.now()):
            continue
        try:
            value = read(ref, installation.environ, development)
        except SecretUnusable as error:
            yield problem(_about(route), f"found {error.found}", f"expected {error.expected}")
            continue
        values.setdefault(value, []).append(route.name)
        if not route.provider.is_queue:
            yield from _shape(route, ref, value.decode("utf-8", "replace"))


def _expiries(installation: Installation, route: Route) -> Iterator[Finding]:
    now = installation.now()
    make = problem if all(ref.has_expired(now) for ref in route.secrets) else warning
    for told in find_expiries([route], now):
        yield make(_about(route), told, "who still uses it: `gateway status`; see docs/secrets.md")


def _shape(route: Route, ref: SecretRef, text: str) -> Iterator[Finding]:
    about = _about(route)
    other = next((what for start, what in TELLING.items() if text.startswith(start)), None)
    if text[0] == text[-1] and text[0] in "\"'":
        yield problem(about, f"{ref} stands in quotes", "take them away: they count as its own")
    elif other is not None:
        yield problem(about, f"{ref} is {other}", f"put in the signing secret of {_where(route)}")
    elif route.provider.name == "stripe" and not text.startswith("whsec_"):
        yield problem(
            about,
            f"{ref} does not begin with whsec_",
            f"put in the signing secret of {_where(route)}",
        )
    elif len(text) < SHORT:
        yield warning(about, f"{ref} has only {len(text)} characters", "make a longer one")
    elif any(char.isspace() for char in text):
        yield warning(about, f"{ref} has a space in it", "is it one secret, and all of it?")


def _where(route: Route) -> str:
    return {
        "stripe": "the endpoint (Dashboard, Developers, Webhooks)",
        "github": "the hook (Settings, Webhooks)",
    }.get(route.provider.name, "the sender")


def _api_key(installation: Installation, route: Route) -> Iterator[Finding]:
    """Check the API key. It is only a warning if it is missing, because only workers need it."""
    if route.api_key is None:
        return
    try:
        key = resolve(route.api_key, installation.environ, {})
    except SecretUnusable as error:
        yield warning(
            _about(route), f"api_key: found {error.found}", "set it for workers; serve needs none"
        )
        return
    if route.provider.name == "stripe" and not key.startswith((b"sk_", b"rk_")):
        yield problem(
            _about(route),
            f"api_key: {route.api_key} begins neither with sk_ nor with rk_",
            "put in a secret or restricted key of Stripe's (Dashboard, Developers, API keys)",
        )
    else:
        yield ok(_about(route), "has an api_key")


def _of_workers(installation: Installation) -> Iterator[Finding]:
    """Check the secrets of forwards, alerts and reconcile, which a worker needs to start."""
    config = installation.config
    if config is None:
        return
    for check in (check_destinations, check_hook_keys, check_alerts):
        try:
            check(config, installation.environ)
        except ConfigInvalid as error:
            for told in error.problems:
                advice = f"expected {told.expected}; set it for workers, serve needs none"
                yield warning("secrets", f"{told.key}: found {told.found}", advice)
    if config.alerts is None:
        yield ok("alerts", "nobody is told of dead letters: see `alerts` in docs/routes.md")


def _keys(installation: Installation) -> Iterator[Finding]:
    """Check the encryption keys, without which neither `serve` nor a worker starts."""
    config = installation.config
    if config is None or not config.keys:
        return
    try:
        ring = check_keys(
            config, installation.environ, read_secrets(installation.settings.dev_secrets)
        )
    except ConfigInvalid as error:
        for told in error.problems:
            yield problem(KEYS, f"{told.key}: found {told.found}", f"expected {told.expected}")
        return
    yield ok(KEYS, f"{len(ring.ids)} in order; {ring.first} encrypts")
    references = [str(ref) for ref in (*config.keys, config.digest_key) if ref is not None]
    if used := stand_ins(installation.settings.dev_secrets, references, installation.environ):
        yield warning(
            KEYS,
            f"{', '.join(used)}: a made-up development key is used",
            "set your own before events come that matter",
        )
    if config.digest_key is None:
        yield warning(
            KEYS,
            "there is no digest_key: whoever reads the ledger can test guesses of keys and bodies",
            "set one before the first encrypted event comes, see docs/privacy.md",
        )


def _shared(values: dict[bytes, list[str]]) -> Iterator[Finding]:
    for routes in values.values():
        names = sorted(set(routes))
        if len(names) > 1:
            yield warning(
                "secrets",
                f"the routes {', '.join(names)} have the same secret: what is signed for one is"
                " valid at the other",
                "give each its own",
            )


def _made_up(installation: Installation) -> Iterator[Finding]:
    settings = installation.settings
    references = valid_references(installation.routes, installation.now())
    used = stand_ins(settings.dev_secrets, references, installation.environ)
    if not used:
        return
    told = f"{', '.join(used)}: a made-up development secret is used"
    host = urlsplit(settings.public_url or "").hostname
    if host is not None and host not in LOCAL:
        yield problem("secrets", told, "set the provider's own: nobody signs with a made-up one")
    else:
        yield warning("secrets", told, "for real senders, set the provider's own")


def _about(route: Route) -> str:
    return f"route {route.name}"


LOCAL_HOSTS: Final = frozenset({"", "localhost", "127.0.0.1", "::1"})
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
    return list(_judge("Postgres", hosts, is_encrypted, mode == VERIFIED, advice))


def check_redis_encryption(url: str) -> list[Finding]:
    """Check the connection to Redis and its Sentinels."""
    place = read_redis_url(url)
    hosts = [host for host, _ in place.hosts]
    is_verified = (
        place.options.get("ssl_cert_reqs") != "none"
        and place.options.get("ssl_check_hostname") is not False
    )
    advice = "GATEWAY_REDIS_URL=rediss://...?ssl_ca_certs=/path/ca.pem"
    return list(_judge("Redis", hosts, place.is_encrypted, is_verified, advice))


def _judge(
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
