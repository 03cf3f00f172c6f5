"""All subscriptions of a configuration."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from gateway.errors import ConfigInvalid, Problem
from gateway.model import RetryPolicy
from gateway.notation.problems import Unexpected
from gateway.notation.quantities import format_duration
from gateway.registry.decorator import HandlerFunction
from gateway.registry.modules import Decorated, read_handlers
from gateway.routes import Config, Route

REMEMBERED_TYPES: Final = 4096
REMEMBERED_TYPE_CHARS: Final = 200
"""Types come from outside: what is remembered of them is bounded in number and in size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One handler on one route."""

    route: str
    handler: str
    types: tuple[str, ...]
    function: HandlerFunction
    timeout: timedelta
    retry: RetryPolicy


class Registry:
    """All subscriptions of a configuration."""

    def __init__(self, subscriptions: Iterable[Subscription]) -> None:
        self.subscriptions = tuple(subscriptions)
        self._remembered = lru_cache(maxsize=REMEMBERED_TYPES)(self._matching)

    def for_event(self, route: str, type: str) -> tuple[str, ...]:
        """The names of the handlers that take such an event, in the order of their definition."""
        if len(type) > REMEMBERED_TYPE_CHARS:
            return self._matching(route, type)
        return self._remembered(route, type)

    def _matching(self, route: str, type: str) -> tuple[str, ...]:
        return tuple(
            item.handler
            for item in self.subscriptions
            if item.route == route and any(fnmatchcase(type, glob) for glob in item.types)
        )


def load_registry(config: Config) -> Registry:
    """Import the handlers of every route. Raises ConfigInvalid with all that is wrong with them."""
    names = dict.fromkeys(name for route in config.routes for name in route.handlers)
    modules = {name: read_handlers(name) for name in names}
    subscriptions: list[Subscription] = []
    problems: list[Problem] = []
    for route in config.routes:
        taken: dict[str, str] = {}
        for index, name in enumerate(route.handlers):
            for item in modules[name]:
                try:
                    subscriptions.append(_subscribe(config, route, item, taken))
                except Unexpected as error:
                    at = ("routes", route.name, "handlers", index)
                    problems.append(config.problem(*at, found=error.found, expected=error.expected))
    if problems:
        raise ConfigInvalid(problems)
    return Registry(subscriptions)


def _subscribe(
    config: Config, route: Route, item: Decorated | Unexpected, taken: dict[str, str]
) -> Subscription:
    """Raises Unexpected. `taken` says where the route's handlers stand that have a name already."""
    if isinstance(item, Unexpected):
        raise item
    if item.name in taken:
        raise Unexpected(
            found=f"two handlers named {item.name} ({taken[item.name]} and {item.place})",
            expected="one name each: @handler(..., name=...)",
        )
    taken[item.name] = item.place
    return Subscription(
        route=route.name,
        handler=item.name,
        types=item.spec.types,
        function=item.function,
        timeout=item.spec.timeout or config.timeout,
        retry=_retry(config, item),
    )


def _retry(config: Config, item: Decorated) -> RetryPolicy:
    retry = item.spec.retry(config.retry)
    if retry.cap < retry.base:
        base, cap = format_duration(retry.base), format_duration(retry.cap)
        found = f"{item.name} ({item.place}) with base {base} and cap {cap}"
        raise Unexpected(found=found, expected="a cap that is at least base")
    return retry
