"""Settings, routes and handlers: whether they can be read, with every problem at once."""

from collections.abc import Iterator, Mapping

from gateway.development import read_up
from gateway.errors import ConfigInvalid, Problem
from gateway.operate.doctor.finding import Finding, ok, problem, warning
from gateway.operate.doctor.installation import Installation
from gateway.registry import Registry, load_registry
from gateway.routes import Config, load_config
from gateway.settings import Settings, discover, load_settings

SETTINGS = "settings"
ROUTES = "routes"
HANDLERS = "handlers"


def read_installation(environ: Mapping[str, str]) -> tuple[Installation, list[Finding]]:
    """As much of it as can be read, and why the rest cannot."""
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
    """Without the variables that are wrong, so that everything else can still be examined."""
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
    """What was read."""
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
    return ok(ROUTES, f"{config.file}: {len(config.routes)} routes ({names})")


def _allowed(settings: Settings, config: Config) -> Iterator[Finding]:
    """`serve` speaks no TLS: where senders use it, a proxy ends it, and connects in their place."""
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
        yield ok(HANDLERS, f"{count} handlers load")
