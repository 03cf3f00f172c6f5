"""All subscriptions of a configuration."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

from gateway.errors import ConfigInvalid, Problem
from gateway.model import Event, OnDead, Rate, RetryPolicy, read_payload
from gateway.notation.problems import Location, Unexpected
from gateway.notation.quantities import format_duration
from gateway.registry.decorator import HandlerFunction
from gateway.registry.key_path import KeyPath
from gateway.registry.modules import Broken, Decorated, Module, read_module
from gateway.registry.resource import Resource
from gateway.routes import Config, Forward, Route

REMEMBERED_TYPES: Final = 4096
REMEMBERED_TYPE_CHARS: Final = 200
"""Types come from outside: what is remembered of them is bounded in number and in size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One handler on one route, or one service to which its events are forwarded."""

    route: str
    handler: str
    types: tuple[str, ...]
    function: HandlerFunction
    timeout: timedelta
    retry: RetryPolicy
    once_per: KeyPath | None = None
    order_by: KeyPath | None = None
    on_dead: OnDead = OnDead.PASS
    concurrency: int | None = None
    rate: Rate | None = None
    forward: Forward | None = None
    """Where it pushes to, in the place of a function of the user's."""

    @property
    def key(self) -> tuple[str, str]:
        return self.route, self.handler

    @property
    def turns(self) -> KeyPath | None:
        """By which key its deliveries take turns. What is done once per key must not be begun twice
        at the same time either."""
        return self.order_by or self.once_per

    @property
    def is_limited(self) -> bool:
        """Whether only so many may run at once, or start in a period."""
        return self.concurrency is not None or self.rate is not None


class Registry:
    """All subscriptions of a configuration, and what their handlers share."""

    def __init__(
        self, subscriptions: Iterable[Subscription], resources: Iterable[Resource] = ()
    ) -> None:
        self.subscriptions = tuple(subscriptions)
        self.resources = tuple(resources)
        self._turns = {s.key: s.turns for s in self.subscriptions if s.turns is not None}
        self._remembered = lru_cache(maxsize=REMEMBERED_TYPES)(self._matching)

    @property
    def handlers(self) -> tuple[Subscription, ...]:
        """The user's own functions: all but what is forwarded."""
        return tuple(item for item in self.subscriptions if item.forward is None)

    def for_event(self, route: str, type: str) -> tuple[str, ...]:
        """The names of the handlers that take such an event, in the order of their definition."""
        if len(type) > REMEMBERED_TYPE_CHARS:
            return self._matching(route, type)
        return self._remembered(route, type)

    def takes_turns(self, route: str, handler: str) -> bool:
        """Whether the handler's deliveries take turns by a key of their payload."""
        return (route, handler) in self._turns

    def order_keys(
        self, route: str, handlers: Iterable[str], headers: Mapping[str, str], body: bytes
    ) -> dict[str, str]:
        """For those of the handlers that take turns: by which key they do for this event."""
        paths = {h: self._turns[route, h] for h in handlers if (route, h) in self._turns}
        if not paths:
            return {}
        try:
            payload = read_payload(headers, body)
        except ValueError:  # of a sender whose bodies need be no JSON: nothing to take turns by
            return {}
        keys = {handler: path.key(payload) for handler, path in paths.items()}
        return {handler: key for handler, key in keys.items() if key is not None}

    def _matching(self, route: str, type: str) -> tuple[str, ...]:
        return tuple(
            item.handler
            for item in self.subscriptions
            if item.route == route and any(fnmatchcase(type, glob) for glob in item.types)
        )


def load_registry(config: Config) -> Registry:
    """Import the handlers of every route. Raises ConfigInvalid with all that is wrong with them."""
    names = dict.fromkeys(name for route in config.routes for name in route.handlers)
    modules = {name: read_module(name) for name in names}
    subscriptions: list[Subscription] = []
    problems: list[Problem] = []
    for route in config.routes:
        taken: dict[str, str] = {}
        for index, name in enumerate(route.handlers):
            for item in modules[name].handlers:
                try:
                    subscriptions.append(_subscribe(config, route, item, taken))
                except Unexpected as error:
                    at = ("routes", route.name, "handlers", index)
                    problems.append(_problem(config, at, error))
        for index, forward in enumerate(route.forwards):
            try:
                subscriptions.append(_forward(route, forward, taken))
            except Unexpected as error:
                at = ("routes", route.name, "forward", index)
                problems.append(_problem(config, at, error))
    resources, shared = _resources(config, modules)
    if problems or shared:
        raise ConfigInvalid([*problems, *shared])
    return Registry(subscriptions, resources)


def _problem(config: Config, at: Location, error: Unexpected) -> Problem:
    """Where the user has to look first: in the module if that is broken, else among the routes."""
    problem = config.problem(*at, found=error.found, expected=error.expected)
    if not isinstance(error, Broken):
        return problem
    expected = f"{error.expected} ({problem.file}:{problem.line} lists it)"
    return replace(problem, file=error.file, line=error.line, expected=expected)


def _resources(
    config: Config, modules: Mapping[str, Module]
) -> tuple[list[Resource], list[Problem]]:
    """All resources by their names, which are one namespace: `ctx.resources`."""
    found: dict[str, Resource] = {}
    problems: list[Problem] = []
    for item in (item for module in modules.values() for item in module.resources):
        first = found.setdefault(item.name, item)
        if first.function is not item.function:
            both = f"two resources named {item.name} ({first.place} and {item.place})"
            problems.append(config.problem("routes", found=both, expected="one name each"))
    return list(found.values()), problems


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
    _check_keys(route, item)
    return Subscription(
        route=route.name,
        handler=item.name,
        types=item.spec.types,
        function=item.function,
        timeout=item.spec.timeout or config.timeout,
        retry=_retry(config, item),
        once_per=item.spec.once_per,
        order_by=item.spec.order_by,
        on_dead=item.spec.on_dead,
        concurrency=item.spec.concurrency,
        rate=item.spec.rate,
    )


def _check_keys(route: Route, item: Decorated) -> None:
    """A key is stored and shown; and where its field is redacted, all events have the same."""
    redacted = () if route.redaction is None else route.redaction.paths
    for option, key in (("once_per", item.spec.once_per), ("order_by", item.spec.order_by)):
        for path in redacted if key is not None else ():
            if key is not None and path.meets(key.steps):
                raise Unexpected(
                    found=f'{item.name} ({item.place}) with {option}="{key}", where the route'
                    f" redacts {path}",
                    expected="a key that is not redacted",
                )


def _forward(route: Route, forward: Forward, taken: Mapping[str, str]) -> Subscription:
    if forward.handler in taken:
        raise Unexpected(
            found=f"a handler and a forward named {forward.handler} ({taken[forward.handler]})",
            expected="one name each",
        )
    return Subscription(
        route=route.name,
        handler=forward.handler,
        types=forward.types,
        function=_unbound,
        timeout=forward.timeout,
        retry=_checked_retry(forward.retry, forward.handler),
        concurrency=forward.concurrency,
        rate=forward.rate,
        forward=forward,
    )


async def _unbound(event: Event, ctx: Any) -> None:
    """Stands where a worker puts what pushes: only it has the secrets and the connections."""
    raise RuntimeError("a forward is pushed by `gateway worker`, and by nothing else")


def _retry(config: Config, item: Decorated) -> RetryPolicy:
    return _checked_retry(item.spec.retry(config.retry), f"{item.name} ({item.place})")


def _checked_retry(retry: RetryPolicy, whose: str) -> RetryPolicy:
    if retry.cap < retry.base:
        base, cap = format_duration(retry.base), format_duration(retry.cap)
        found = f"{whose} with base {base} and cap {cap}"
        raise Unexpected(found=found, expected="a cap that is at least base")
    return retry
