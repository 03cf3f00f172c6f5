"""A user's project as one value: settings, routes, secrets and handlers, all checked together."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from gateway.development import read_secrets
from gateway.errors import CommandFailed, ConfigInvalid, Problem
from gateway.outbound.destination import Destination
from gateway.registry import Registry, load_registry
from gateway.routes import (
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
from gateway.sealing import KeyRing
from gateway.secrets import Secret
from gateway.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What a process needs to know before it starts."""

    settings: Settings
    config: Config
    registry: Registry
    secrets: Mapping[str, tuple[Secret, ...]]
    """By the name of the route; empty for a worker, which verifies nothing."""
    api_keys: Mapping[str, Secret]
    """By the name of the route; empty for `serve`, which calls nobody."""
    destinations: Mapping[tuple[str, str], Destination] = field(default_factory=dict)
    """Of forwards, by route and handler; empty for `serve`."""
    alerts: AlertDestinations = field(default_factory=AlertDestinations)
    """Where alerts go, for a worker, which does not start without."""
    ring: KeyRing = field(default_factory=KeyRing)
    """The keys of encrypted routes: who stores events or runs them does not start without."""
    verify_tokens: Mapping[str, Secret] = field(default_factory=dict)
    """What handshakes must show, by the name of the route; empty for a worker."""


def load_project(
    settings: Settings,
    *,
    environ: Mapping[str, str] = os.environ,
    with_secrets: bool = False,
    with_api_keys: bool = False,
) -> Project:
    """Reads and checks everything; raises ConfigInvalid with every problem at once."""
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
    """The routes' secrets, from where they refer to or as `gateway up` made them up."""
    return check_secrets(config, environ, read_secrets(settings.dev_secrets))


def load_keys(
    settings: Settings, config: Config, environ: Mapping[str, str] = os.environ
) -> KeyRing:
    """The key ring, likewise. Raises ConfigInvalid."""
    return check_keys(config, environ, read_secrets(settings.dev_secrets))


def load_first_secret(settings: Settings, config: Config, route: Route) -> Secret:
    """With which to sign, or to publish: the first one of a route that has not expired."""
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
    """The ledger's URL, or ConfigInvalid."""
    if settings.database_url is None:
        raise ConfigInvalid([_missing("GATEWAY_DATABASE_URL", "postgresql://user@host/database")])
    return settings.database_url.get_secret_value()


def redis_url(settings: Settings) -> str:
    """The queue's URL, or ConfigInvalid."""
    if settings.redis_url is None:
        raise ConfigInvalid([_missing("GATEWAY_REDIS_URL", "redis://host:6379/0")])
    return settings.redis_url.get_secret_value()


def missing_public_url(routes: Sequence[str]) -> Problem:
    """Where senders sign the URL that they call, it must be known, whatever the proxies say."""
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
