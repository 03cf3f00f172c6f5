"""A user's project as one value: settings, routes, secrets and handlers, all checked together."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from gateway.base.errors import CommandFailed, ConfigInvalid, Problem
from gateway.base.names import NO_NAMES, Declared, Names
from gateway.base.secrets import Secret
from gateway.config.development import read_secrets
from gateway.config.registry import Registry, load_registry
from gateway.config.routes import (
    AlertDestinations,
    Config,
    Route,
    check_alerts,
    check_api_keys,
    check_destinations,
    check_hook_keys,
    check_keys,
    check_secrets,
    check_verify_tokens,
    load_config,
)
from gateway.config.settings import Settings
from gateway.http.outbound import Destination
from gateway.privacy.encryption import KeyRing

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The configuration that a process needs before it starts."""

    settings: Settings
    config: Config
    registry: Registry
    secrets: Mapping[str, tuple[Secret, ...]]
    """By name of the route. Empty for a worker, which verifies nothing."""
    api_keys: Mapping[str, Secret]
    """By name of the route. Empty for `serve`, which calls no provider's API."""
    destinations: Mapping[tuple[str, str], Destination] = field(default_factory=dict)
    """Destinations of forwards, by route and handler. Empty for `serve`."""
    alerts: AlertDestinations = field(default_factory=AlertDestinations)
    """Destinations of alerts, for a worker, which does not start without them."""
    ring: KeyRing = field(default_factory=KeyRing)
    """The keys of encrypted routes. A process that stores or runs events does not start without
    them."""
    verify_tokens: Mapping[str, Secret] = field(default_factory=dict)
    """The tokens that handshakes must present, by name of the route. Empty for a worker."""
    names: Names = NO_NAMES
    """Resolves the names of routes and handlers."""

    def identified(self, names: Names) -> "Project":
        """Return the project with the identities of routes and handlers in place of their names.

        The ledger stores identities. Users see labels, which stay: with no names (`NO_NAMES`) every
        label is its own identity again.
        """
        if not (names or self.names):
            return self
        config = self.config.identified(names)
        pairs = zip(self.config.routes, config.routes, strict=True)
        moved = {old.name: new.name for old, new in pairs}
        return replace(
            self,
            config=config,
            registry=self.registry.identified(names),
            secrets={moved[route]: found for route, found in self.secrets.items()},
            api_keys={moved[route]: found for route, found in self.api_keys.items()},
            verify_tokens={moved[route]: found for route, found in self.verify_tokens.items()},
            destinations={
                (moved[route], handler): found
                for (route, handler), found in self.destinations.items()
            },
            names=names,
        )

    def declared_names(self) -> list[Declared]:
        """Return the names of routes and handlers, and their former ones."""
        return [*self.config.declared_names(), *self.registry.declared_names(self.config)]


def load_project(
    settings: Settings,
    *,
    environ: Mapping[str, str] = os.environ,
    with_secrets: bool = False,
    with_api_keys: bool = False,
) -> Project:
    """Read and check everything. Raises ConfigInvalid with all problems at once."""
    config = load_config(settings.config)
    problems: list[Problem] = []
    secrets: dict[str, tuple[Secret, ...]] | None = {}
    verify_tokens: dict[str, Secret] | None = {}
    if with_secrets:
        secrets = _collect(problems, lambda: load_secrets(settings, config, environ))
        made_up = read_secrets(settings.dev_secrets)
        verify_tokens = _collect(problems, lambda: check_verify_tokens(config, environ, made_up))
    api_keys: dict[str, Secret] | None = {}
    destinations: dict[tuple[str, str], Destination] | None = {}
    alerts: AlertDestinations | None = AlertDestinations()
    if with_api_keys:
        api_keys = _collect(problems, lambda: check_api_keys(config, environ))
        destinations = _collect(problems, lambda: check_destinations(config, environ))
        alerts = _collect(problems, lambda: check_alerts(config, environ))
        _collect(problems, lambda: check_hook_keys(config, environ))
    ring: KeyRing | None = KeyRing()
    if with_secrets or with_api_keys:
        ring = _collect(problems, lambda: load_keys(settings, config, environ))
    registry = _collect(problems, lambda: load_registry(config))
    if (
        problems
        or registry is None
        or secrets is None
        or verify_tokens is None
        or api_keys is None
        or destinations is None
        or alerts is None
        or ring is None
    ):
        raise ConfigInvalid(problems)
    return Project(
        settings=settings,
        config=config,
        registry=registry,
        secrets=secrets,
        verify_tokens=verify_tokens,
        api_keys=api_keys,
        destinations=destinations,
        alerts=alerts,
        ring=ring,
    )


def load_secrets(
    settings: Settings, config: Config, environ: Mapping[str, str] = os.environ
) -> dict[str, tuple[Secret, ...]]:
    """Return the routes' secrets, from their references or as `gateway up` made them up."""
    return check_secrets(config, environ, read_secrets(settings.dev_secrets))


def load_keys(
    settings: Settings, config: Config, environ: Mapping[str, str] = os.environ
) -> KeyRing:
    """Return the key ring, from its references or as `gateway up` made it up.

    Raises ConfigInvalid.
    """
    return check_keys(config, environ, read_secrets(settings.dev_secrets))


def load_first_secret(settings: Settings, config: Config, route: Route) -> Secret:
    """Return the first secret of a route that has not expired, to sign or to publish with."""
    now = datetime.now(UTC)
    for secret in load_secrets(settings, replace(config, routes=(route,)))[route.name]:
        if secret.ref is None or not secret.ref.has_expired(now):
            return secret
    raise CommandFailed(f"every secret of {route.name!r} has expired")


def _collect(problems: list[Problem], load: Callable[[], T]) -> T | None:
    try:
        return load()
    except ConfigInvalid as error:
        problems.extend(error.problems)
        return None


def database_url(settings: Settings) -> str:
    """Return the ledger's URL. Raises ConfigInvalid if it is not set."""
    if settings.database_url is None:
        raise ConfigInvalid([_missing("GATEWAY_DATABASE_URL", "postgresql://user@host/database")])
    return settings.database_url.get_secret_value()


def redis_url(settings: Settings) -> str:
    """Return the queue's URL. Raises ConfigInvalid if it is not set."""
    if settings.redis_url is None:
        raise ConfigInvalid([_missing("GATEWAY_REDIS_URL", "redis://host:6379/0")])
    return settings.redis_url.get_secret_value()


def missing_public_url(routes: Sequence[str]) -> Problem:
    """Return the problem that the public URL is missing.

    If senders sign the URL that they call, it must be configured, whatever the proxies report.
    """
    return Problem(
        file="environment",
        key="GATEWAY_PUBLIC_URL",
        found="nothing",
        expected="the URL that senders call, such as https://hooks.example.com: it is part of what"
        f" is verified on {', '.join(routes)}",
    )


def _missing(key: str, example: str) -> Problem:
    return Problem(
        file="environment",
        key=key,
        found="nothing",
        expected=f"a URL such as {example} (or start everything with `gateway up`)",
    )
