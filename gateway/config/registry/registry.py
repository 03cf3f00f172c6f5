"""All subscriptions of a configuration."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, Final

from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.model import Event, HandlerKey, OnDead, Rate, RetryPolicy, read_payload
from gateway.base.names import Declared, NameKind, Names
from gateway.base.problems import Location, Unexpected
from gateway.base.units import format_duration
from gateway.config.registry.decorator import HandlerFunction, Resource
from gateway.config.registry.key_path import KeyPath
from gateway.config.registry.modules import Broken, Decorated, Module, read_module
from gateway.config.routes import Config, Forward, Route

REMEMBERED_TYPES: Final = 4096
REMEMBERED_TYPE_CHARS: Final = 200
"""Limit on the length of cached types. Senders choose them, so number and size are limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A handler on a route, or an HTTP service to which the events of the route are forwarded."""

    route: str
    handler: str
    """The name in the code, or after `identified` the identity in the ledger."""
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
    """The destination of a forward, which has no function of the user."""
    formerly: tuple[str, ...] = ()
    """Former names."""
    label: str = ""
    """The displayed name of the handler: its name in the code, whatever the identity is."""
    route_label: str = ""
    """The displayed name of the route."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.handler)
        object.__setattr__(self, "route_label", self.route_label or self.route)

    def identified(self, names: Names) -> "Subscription":
        """Return the subscription with identities in place of names."""
        route = names.routes.identity(self.route_label)
        return replace(self, route=route, handler=names.handlers.identity(self.label))

    @property
    def key(self) -> HandlerKey:
        return self.route, self.handler

    @property
    def turns(self) -> KeyPath | None:
        """The ordering key of its deliveries.

        `once_per` counts, too: two deliveries with the same key must not run at the same time.
        """
        return self.order_by or self.once_per

    @property
    def is_limited(self) -> bool:
        """Whether the handler has a concurrency or rate limit."""
        return self.concurrency is not None or self.rate is not None


class Registry:
    """All subscriptions of a configuration, and the resources that their handlers share."""

    def __init__(
        self, subscriptions: Iterable[Subscription], resources: Iterable[Resource] = ()
    ) -> None:
        self.subscriptions = tuple(subscriptions)
        self.resources = tuple(resources)
        self._turns = {s.key: s.turns for s in self.subscriptions if s.turns is not None}
        self._remembered = lru_cache(maxsize=REMEMBERED_TYPES)(self._matching)

    @property
    def handlers(self) -> tuple[Subscription, ...]:
        """The subscriptions of the user's functions: all except forwards."""
        return tuple(item for item in self.subscriptions if item.forward is None)

    def identified(self, names: Names) -> "Registry":
        """Return the registry with identities in place of names."""
        return Registry([item.identified(names) for item in self.subscriptions], self.resources)

    def declared_names(self, config: Config) -> list[Declared]:
        """Return the handlers' names, each once, and their former ones."""
        return [
            Declared(
                kind=NameKind.HANDLER,
                name=item.label,
                formerly=item.formerly,
                problem=partial(_former_problem, config, item),
            )
            for item in {item.label: item for item in self.subscriptions}.values()
        ]

    def for_event(self, route: str, type: str) -> tuple[str, ...]:
        """Return the names of the handlers for an event, in the order of their definition."""
        if len(type) > REMEMBERED_TYPE_CHARS:
            return self._matching(route, type)
        return self._remembered(route, type)

    def takes_turns(self, route: str, handler: str) -> bool:
        """Return whether the handler's deliveries have an ordering key."""
        return (route, handler) in self._turns

    def order_keys(
        self, route: str, handlers: Iterable[str], headers: Mapping[str, str], body: bytes
    ) -> dict[str, str]:
        """Return the ordering key of this event for each of the handlers that has one."""
        paths = {h: self._turns[route, h] for h in handlers if (route, h) in self._turns}
        if not paths:
            return {}
        try:
            payload = read_payload(headers, body)
        except ValueError:  # the body is not JSON, so there is no ordering key
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
    """Import the handlers of every route. Raises ConfigInvalid with all problems."""
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
    problems += [*shared, *_taken_names(config, subscriptions)]
    if problems:
        raise ConfigInvalid(problems)
    return Registry(subscriptions, resources)


def _former_problem(config: Config, item: Subscription, found: str, expected: str) -> Problem:
    return config.problem("routes", item.route_label, "handlers", found=found, expected=expected)


def _taken_names(config: Config, subscriptions: Sequence[Subscription]) -> Iterator[Problem]:
    """Report former names that are in use.

    A name belongs to one handler, which may be on several routes.
    """
    handlers = {item.handler: item for item in subscriptions}
    claimed: dict[str, str] = {}
    for item in handlers.values():
        for former in item.formerly:
            taken = None
            if former in handlers:
                taken = f"but there is a handler {former} on route {handlers[former].route}"
            elif claimed.setdefault(former, item.handler) != item.handler:
                taken = f"which {claimed[former]} claims, too"
            if taken is not None:
                yield _former_problem(
                    config,
                    item,
                    f"{item.handler} formerly {former}, {taken}",
                    "the former name of one handler, which no handler has any more",
                )


def _problem(config: Config, at: Location, error: Unexpected) -> Problem:
    """Locate the problem in the module if that does not import, or else in routes.yaml."""
    problem = config.problem(*at, found=error.found, expected=error.expected)
    if not isinstance(error, Broken):
        return problem
    expected = f"{error.expected} ({problem.file}:{problem.line} lists it)"
    return replace(problem, file=error.file, line=error.line, expected=expected)


def _resources(
    config: Config, modules: Mapping[str, Module]
) -> tuple[list[Resource], list[Problem]]:
    """Return all resources. Their names must be unique, since `ctx.resources` is one namespace."""
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
    """Return the subscription of a handler. Raises Unexpected.

    `taken` maps the handler names of the route that are in use to their locations.
    """
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
        formerly=item.spec.formerly,
    )


def _check_keys(route: Route, item: Decorated) -> None:
    """Refuse keys of redacted fields.

    A key is stored and shown. If its field is redacted, all events would also have the same key.
    """
    redacted = () if route.redaction is None else route.redaction.paths
    for option, key in (("once_per", item.spec.once_per), ("order_by", item.spec.order_by)):
        for path in redacted if key is not None else ():
            if key is not None and any(map(path.meets, key.paths)):
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
    """Placeholder for the function of a forward.

    A worker replaces it, since only workers have the secrets and connections to push events.
    """
    raise RuntimeError("a forward is pushed by `gateway worker`, and by nothing else")


def _retry(config: Config, item: Decorated) -> RetryPolicy:
    return _checked_retry(item.spec.retry(config.retry), f"{item.name} ({item.place})")


def _checked_retry(retry: RetryPolicy, whose: str) -> RetryPolicy:
    if retry.cap < retry.base:
        base, cap = format_duration(retry.base), format_duration(retry.cap)
        found = f"{whose} with base {base} and cap {cap}"
        raise Unexpected(found=found, expected="a cap that is at least base")
    return retry
