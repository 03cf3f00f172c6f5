"""Check whether a request verifies under a key, within a budget of hashed bytes."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from gateway.base.errors import RequestRejected, StaleTimestamp
from gateway.base.problems import Unexpected
from gateway.config.routes import Route
from gateway.providers import Incoming, Provider
from gateway.providers.provider import Key
from gateway.receive.provider_headers import ProviderHeaders, marks_of

ANY_TIME: Final = timedelta(days=36_500)


class HashBudget:
    """How many bytes may still be hashed.

    It bounds the cost of a flood, whatever it consists of.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes

    def spend(self, size: int) -> None:
        self._left -= size

    @property
    def is_spent(self) -> bool:
        return self._left <= 0


class TriedRoute(NamedTuple):
    """A route with its secrets."""

    route: Route
    secrets: tuple[bytes, ...]
    keys: tuple[Key, ...]
    marks: ProviderHeaders


def make_known(route: Route, secrets: Sequence[bytes]) -> TriedRoute:
    if route.provider.is_queue:  # a queue's tokens sign nothing
        return TriedRoute(route, (), (), ProviderHeaders(frozenset(), frozenset()))
    keys = read_keys(route.provider, secrets)
    return TriedRoute(route, tuple(secrets), tuple(keys), marks_of(route.provider))


def read_keys(provider: Provider, secrets: Iterable[bytes]) -> list[Key]:
    keys = []
    for secret in secrets:
        try:
            keys.append(provider.read_key(secret))
        except Unexpected:  # not a valid key of this provider
            continue
    return keys


def matches(
    provider: Provider, incoming: Incoming, keys: Sequence[Key], at: datetime, budget: HashBudget
) -> bool:
    budget.spend(len(incoming.body) * len(keys))
    try:
        provider.verify(incoming, keys=keys, now=at, tolerance=ANY_TIME)
    except StaleTimestamp:
        return True
    except RequestRejected:
        return False
    return True
