"""Whether a request verifies under a key, tried again and again, up to a bound."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from gateway.errors import RequestRejected, StaleTimestamp
from gateway.notation.problems import Unexpected
from gateway.providers import Incoming, Provider
from gateway.providers.provider import Key
from gateway.receive.marks import Marks, marks_of
from gateway.routes import Route

ANY_TIME: Final = timedelta(days=36_500)


class Budget:
    """How many bytes may still be hashed: a flood buys no more than this, however it looks."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes

    def spend(self, size: int) -> None:
        self._left -= size

    @property
    def is_spent(self) -> bool:
        return self._left <= 0


class Known(NamedTuple):
    """A route with its secrets."""

    route: Route
    secrets: tuple[bytes, ...]
    keys: tuple[Key, ...]
    marks: Marks


def make_known(route: Route, secrets: Sequence[bytes]) -> Known:
    if route.provider.is_queue:  # its tokens sign nothing
        return Known(route, (), (), Marks(frozenset(), frozenset()))
    keys = read_keys(route.provider, secrets)
    return Known(route, tuple(secrets), tuple(keys), marks_of(route.provider))


def read_keys(provider: Provider, secrets: Iterable[bytes]) -> list[Key]:
    keys = []
    for secret in secrets:
        try:
            keys.append(provider.read_key(secret))
        except Unexpected:  # no key of this provider
            continue
    return keys


def matches(
    provider: Provider, incoming: Incoming, keys: Sequence[Key], at: datetime, budget: Budget
) -> bool:
    budget.spend(len(incoming.body) * len(keys))
    try:
        provider.verify(incoming, keys=keys, now=at, tolerance=ANY_TIME)
    except StaleTimestamp:
        return True
    except RequestRejected:
        return False
    return True
