"""Check that settings, routes, handlers and secrets can be read, and report every problem."""

from collections.abc import Iterator
from itertools import islice
from typing import Final
from urllib.parse import urlsplit

from gateway.base.errors import ConfigInvalid
from gateway.base.secrets import SecretRef, SecretUnusable, resolve, resolve_token
from gateway.base.units import format_count
from gateway.config.development import read_secrets, read_up, stand_ins
from gateway.config.registry import Registry
from gateway.config.routes import (
    Config,
    Route,
    check_alerts,
    check_destinations,
    check_hook_keys,
    check_keys,
    valid_references,
)
from gateway.config.settings import Settings
from gateway.operations.health.attention import find_expiries
from gateway.operations.health.findings import (
    HANDLERS,
    LOCAL,
    ROUTES,
    SETTINGS,
    Check,
    Finding,
    Installation,
    ok,
    problem,
    run_checks,
    warning,
)

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
SIGNING_SECRETS: Final = {
    "stripe": "the endpoint (Dashboard, Developers, Webhooks)",
    "github": "the hook (Settings, Webhooks)",
}
"""Where a provider shows its signing secret."""

SHAPES: Final = (
    Check(
        lambda s: s["text"][0] == s["text"][-1] and s["text"][0] in "\"'",
        "problem",
        "{ref} stands in quotes",
        "take them away: they count as its own",
    ),
    Check(
        lambda s: s["other"] is not None,
        "problem",
        "{ref} is {other}",
        "put in the signing secret of {where}",
    ),
    Check(
        lambda s: s["is_stripe"] and not s["text"].startswith("whsec_"),
        "problem",
        "{ref} does not begin with whsec_",
        "put in the signing secret of {where}",
    ),
    Check(
        lambda s: s["length"] < SHORT,
        "warning",
        "{ref} has only {length} characters",
        "make a longer one",
    ),
    Check(
        lambda s: any(char.isspace() for char in s["text"]),
        "warning",
        "{ref} has a space in it",
        "is it one secret, and all of it?",
    ),
)
KEYS: Final = "keys"


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
    """Return the first finding about the form of a secret."""
    other = next((what for start, what in TELLING.items() if text.startswith(start)), None)
    row = {
        "ref": ref,
        "text": text,
        "other": other,
        "length": len(text),
        "is_stripe": route.provider.name == "stripe",
        "where": SIGNING_SECRETS.get(route.provider.name, "the sender"),
    }
    yield from islice(run_checks(_about(route), SHAPES, row), 1)


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
