"""API clients and event listings for the providers of routes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import httpx

from gateway.base.errors import CommandFailed, ConfigInvalid, ProviderFailed
from gateway.base.secrets import Secret
from gateway.config.registry import Registry
from gateway.config.routes import Config, Route, check_api_keys, check_hook_keys
from gateway.config.routes.reconcile import API_URLS, STRIPE_API, Reconcile
from gateway.operations.reconcile.api import Api, Rest, app_tokens, read_key
from gateway.operations.reconcile.github import GithubDeliveries
from gateway.operations.reconcile.stripe import StripeEvents

STRIPE_LIMITED_S: Final = 2.0
GITHUB_LIMITED_S: Final = 60.0
"""https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api: at least a
minute if a secondary limit does not say how long.
"""

Row = dict[str, Any]


def find_route(config: Config, name: str) -> Route:
    """Return a route whose provider has an API to list events. Raises CommandFailed."""
    route = next((route for route in config.routes if route.name == name), None)
    if route is None:
        known = ", ".join(route.label for route in config.routes)
        raise CommandFailed(f"there is no route {name!r} in {config.file}: it has {known}")
    if route.provider.name not in API_URLS:
        askable = " and ".join(sorted(API_URLS))
        raise CommandFailed(
            f"route {route.label!r} is of provider {route.provider.name}, which cannot be asked"
            f" what it sent: only {askable} can"
        )
    return route


def askable_routes(config: Config) -> list[str]:
    """Return the routes that have everything configured that reconcile needs."""
    return [route.name for route in config.routes if _is_askable(route)]


def _is_askable(route: Route) -> bool:
    if route.provider.name == "stripe":
        return route.api_key is not None
    return route.reconcile is not None


def reconcile_of(route: Route) -> Reconcile:
    if route.reconcile is None and route.provider.name == "stripe":
        return Reconcile(api_url=STRIPE_API)  # the api_key suffices
    if route.reconcile is None:
        raise CommandFailed(
            f"route {route.label!r} does not say where its webhook is: it needs `reconcile` with "
            "hook and token (docs/reconcile.md)"
        )
    return route.reconcile


def show_key(config: Config, route: Route, environ: Mapping[str, str]) -> Secret:
    """Read the API key again for each run. Raises CommandFailed or ConfigInvalid."""
    reconcile_of(route)
    only = replace(config, routes=(route,))
    if not _is_askable(route):
        raise CommandFailed(f"route {route.label!r} has no api_key: Stripe cannot be asked")
    if route.provider.name != "stripe":
        return check_hook_keys(only, environ)[route.name]
    key = check_api_keys(only, environ)[route.name]
    if route.livemode and b"_test_" in key.reveal():
        found = "a test key, where livemode takes only live events"
        at = ("routes", route.name, "api_key")
        raise ConfigInvalid([config.problem(*at, found=found, expected="a live key")])
    return key


def make_api(
    route: Route, reconcile: Reconcile, key: Secret, http: httpx.AsyncClient, rest: Rest
) -> Api:
    is_stripe = route.provider.name == "stripe"
    return Api(
        name="Stripe" if is_stripe else "GitHub",
        http=http,
        base_url=reconcile.api_url,
        authorize=_authorization(route, reconcile, key),
        rest=rest,
        limited_s=STRIPE_LIMITED_S if is_stripe else GITHUB_LIMITED_S,
    )


def _authorization(
    route: Route, reconcile: Reconcile, key: Secret
) -> Callable[[], Mapping[str, str]]:
    if reconcile.app_id is None:
        token = key.reveal().decode()
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ProviderFailed(f"the key of route {route.label!r} cannot stand in a header")
        return lambda: _headers(token)
    try:
        tokens = app_tokens(reconcile.app_id, read_key(key.reveal()))
    except ValueError as error:
        raise ProviderFailed(f"routes.{route.label}.reconcile.private_key: {error}") from None
    return lambda: _headers(tokens())


def _headers(token: str) -> dict[str, str]:
    return {
        "authorization": f"Bearer {token}",
        "accept": "application/vnd.github+json, application/json",
        "user-agent": "webhook-gateway",
    }


def list_stripe(
    api: Api, registry: Registry, route: Route, reconcile: Reconcile, row: Row
) -> StripeEvents:
    return StripeEvents(
        api=api,
        route=route,
        since=row["since"],
        until=row["until"],
        handled=lambda type: bool(registry.for_event(route.name, type)),
        accounts=reconcile.accounts,
    )


def list_github(api: Api, route: Route, reconcile: Reconcile, row: Row) -> GithubDeliveries:
    return GithubDeliveries(
        api=api,
        route=route,
        hook=reconcile.hook or "",
        since=row["since"],
        until=row["until"],
    )
