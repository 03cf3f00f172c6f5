"""The `@resource` decorator: objects that a worker opens at its start for all its handlers."""

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar

from gateway.base.model import Backoff, Event, OnDead, Rate, RetryPolicy
from gateway.base.problems import describe, one_of
from gateway.base.units import (
    DURATION_EXPECTED,
    LONGEST,
    MILLISECOND,
    RATE_EXPECTED,
    format_duration,
    parse_duration,
    parse_rate,
)
from gateway.config.registry.key_path import EXPECTED as PATH_EXPECTED
from gateway.config.registry.key_path import MOST_PATHS, PATTERN, KeyPath
from gateway.config.routes.checks import LONGEST_TIMEOUT, MAX_ATTEMPTS, MIN_ATTEMPTS

HandlerFunction = Callable[[Event, Any], Awaitable[None]]
"""The second argument is a Context. It is Any, because this module must not import worker."""
Function = TypeVar("Function", bound=HandlerFunction)
Wait = timedelta | float | str
"""A timedelta, seconds, or a text such as `30s`."""

SPEC: Final = "__gateway_handler__"
MOST_AT_ONCE: Final = 1000
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
NAME_EXPECTED: Final = "letters, digits and . _ : -"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSpec:
    """The options of a decorated function. None stands for the default of the configuration."""

    types: tuple[str, ...]
    timeout: timedelta | None = None
    attempts: int | None = None
    backoff: Backoff | None = None
    base: timedelta | None = None
    cap: timedelta | None = None
    name: str | None = None
    once_per: KeyPath | None = None
    order_by: KeyPath | None = None
    on_dead: OnDead = OnDead.PASS
    concurrency: int | None = None
    rate: Rate | None = None
    formerly: tuple[str, ...] = ()

    def retry(self, defaults: RetryPolicy) -> RetryPolicy:
        """Return the defaults, overridden by the options of the function."""
        return RetryPolicy(
            attempts=defaults.attempts if self.attempts is None else self.attempts,
            backoff=defaults.backoff if self.backoff is None else self.backoff,
            base=defaults.base if self.base is None else self.base,
            cap=defaults.cap if self.cap is None else self.cap,
        )


def handler(
    *types: str,
    timeout: Wait | None = None,
    attempts: int | None = None,
    backoff: Backoff | Literal["exponential", "fixed"] | None = None,
    base: Wait | None = None,
    cap: Wait | None = None,
    name: str | None = None,
    once_per: str | Sequence[str] | None = None,
    order_by: str | Sequence[str] | None = None,
    on_dead: OnDead | Literal["pass", "block"] | None = None,
    concurrency: int | None = None,
    rate: str | None = None,
    formerly: Sequence[str] = (),
) -> Callable[[Function], Function]:
    """Subscribe an `async def (event, ctx)` to event types.

    Types are globs: `invoice.paid`, `invoice.*`, `*`. The events come from the routes that list
    the function's module under `handlers`. `timeout`, `base` and `cap` are a timedelta, seconds,
    or a text such as "30s". Omitted options default to `defaults` of `routes.yaml`. `name` is
    the handler's name, `module.function` by default. `formerly` lists its former names, newest
    first: add the old name when you rename or move a function, so that its deliveries, effects and
    keys continue under the new name. It can be removed once every worker has started with it.

    `once_per` is the path of a value in the payload (`data.object.id`), or a list of paths whose
    values together are the key (`["account", "data.object.id"]`). Of all events with the same key
    the first to finish counts, and the others end as done without running. `order_by` is an
    ordering key of the same form: deliveries with the same key run one at a time, in the order in
    which their events were received. Later deliveries wait while an earlier one waits for its
    retry, and with `on_dead="block"` also while an earlier one is dead.
    `concurrency` is how many deliveries of the handler run at once, and `rate` is how many start in
    a period ("100/m"). Both apply across all workers.
    """
    spec = HandlerSpec(
        types=_check_types(types),
        timeout=_check_wait("timeout", timeout, MILLISECOND, LONGEST_TIMEOUT),
        attempts=_check_count("attempts", attempts, MIN_ATTEMPTS, MAX_ATTEMPTS),
        backoff=_check_backoff(backoff),
        base=_check_wait("base", base, timedelta(0), LONGEST),
        cap=_check_wait("cap", cap, timedelta(0), LONGEST),
        name=_check_name(name),
        once_per=_check_path("once_per", once_per),
        order_by=_check_path("order_by", order_by),
        on_dead=_check_on_dead(on_dead, is_ordered=order_by is not None or once_per is not None),
        concurrency=_check_count("concurrency", concurrency, 1, MOST_AT_ONCE),
        rate=_check_rate(rate),
        formerly=_check_formerly(formerly),
    )

    def subscribe(function: Function) -> Function:
        if spec_of(function) is not None:
            raise TypeError("@handler twice on one function; give one @handler all the types")
        try:
            setattr(function, SPEC, spec)
        except AttributeError:
            raise TypeError(f"@handler on {function!r}, which is not an async def") from None
        return function

    return subscribe


def spec_of(thing: object) -> HandlerSpec | None:
    """Return the options that `@handler` stored on an object, without running any of its code."""
    spec = inspect.getattr_static(thing, SPEC, None)
    return spec if isinstance(spec, HandlerSpec) else None


def _check_types(types: tuple[object, ...]) -> tuple[str, ...]:
    if not types or callable(types[0]):
        raise TypeError('@handler without event types; write @handler("invoice.paid")')
    for glob in types:
        if not isinstance(glob, str):
            raise TypeError(_refusal("type", glob, "text such as invoice.*"))
        if not re.fullmatch(r"\S+", glob):
            raise ValueError(_refusal("type", glob, "an event type such as invoice.*"))
    return tuple(map(str, types))


def _check_wait(option: str, value: object, low: timedelta, high: timedelta) -> timedelta | None:
    if value is None:
        return None
    try:
        wait = _wait(value)
    except (ValueError, OverflowError):
        raise ValueError(_refusal(option, value, DURATION_EXPECTED)) from None
    if not low <= wait <= high:
        bounds = f"{format_duration(low)} to {format_duration(high)}"
        raise ValueError(_refusal(option, value, bounds))
    return wait


def _wait(value: object) -> timedelta:
    match value:
        case timedelta():
            return value
        case str():
            return parse_duration(value)
        case int() | float() if not isinstance(value, bool):
            return timedelta(seconds=value)
    raise ValueError(value)


def _check_count(option: str, count: object, low: int, high: int) -> int | None:
    expected = f"a whole number from {low} to {high}"
    if count is None:
        return None
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(_refusal(option, count, expected))
    if not low <= count <= high:
        raise ValueError(_refusal(option, count, expected))
    return count


def _check_path(option: str, path: object) -> KeyPath | None:
    if path is None:
        return None
    texts: list[str] = []
    for text in path if isinstance(path, list | tuple) else (path,):
        if not isinstance(text, str):
            raise TypeError(_refusal(option, text, PATH_EXPECTED))
        if not re.fullmatch(PATTERN, text):
            raise ValueError(_refusal(option, text, PATH_EXPECTED))
        texts.append(text)
    if not 0 < len(texts) <= MOST_PATHS:
        expected = f"1 to {MOST_PATHS} of them"
        raise ValueError(f"@handler: {option}: found {len(texts)} paths; expected {expected}")
    return KeyPath.parse(*texts)


def _check_on_dead(on_dead: str | None, *, is_ordered: bool) -> OnDead:
    if on_dead is None:
        return OnDead.PASS
    if not is_ordered:
        raise ValueError(_refusal("on_dead", on_dead, "an order_by beside it: nothing waits else"))
    try:
        return OnDead(on_dead)
    except ValueError:
        raise ValueError(_refusal("on_dead", on_dead, one_of(OnDead))) from None


def _check_rate(rate: object) -> Rate | None:
    if rate is None:
        return None
    if not isinstance(rate, str):
        raise TypeError(_refusal("rate", rate, RATE_EXPECTED))
    try:
        count, period = parse_rate(rate)
    except ValueError:
        raise ValueError(_refusal("rate", rate, RATE_EXPECTED)) from None
    return Rate(count=count, period=period)


def _check_backoff(backoff: str | None) -> Backoff | None:
    try:
        return None if backoff is None else Backoff(backoff)
    except ValueError:
        raise ValueError(_refusal("backoff", backoff, one_of(Backoff))) from None


def _check_name(name: object) -> str | None:
    if name is None or (isinstance(name, str) and NAME.fullmatch(name)):
        return name
    raise ValueError(_refusal("name", name, NAME_EXPECTED))


def _check_formerly(names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        expected = "a list of former names, such as ['handlers.billing.on_checkout']"
        raise TypeError(_refusal("formerly", names, expected))
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(_refusal("formerly", name, NAME_EXPECTED))
    return tuple(names)


def _refusal(option: str, value: object, expected: str) -> str:
    return f"@handler: {option}: found {describe(value)}; expected {expected}"


ResourceFunction = Callable[[], AsyncIterator[Any]]
Opened = TypeVar("Opened")

MARK: Final = "__gateway_resource__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource that is opened once per worker."""

    name: str
    function: ResourceFunction
    place: str


def resource(function: Callable[[], AsyncIterator[Opened]]) -> Callable[[], AsyncIterator[Opened]]:
    """Open a resource once per worker, for all its handlers: `ctx.resources.<function's name>`.

    The function is an `async def` without arguments that yields the resource once. The code before
    the `yield` runs when the worker starts, and the code after it when the worker has finished its
    deliveries.
    """
    if not inspect.isasyncgenfunction(function):
        raise TypeError(f"@resource on {function!r}, which is not an async def that yields")
    if inspect.signature(function).parameters:
        raise TypeError(f"@resource on {function.__name__}, which takes arguments")
    setattr(function, MARK, True)
    return function


def is_resource(thing: object) -> bool:
    """Return whether `@resource` marked an object, without running any of its code."""
    return inspect.getattr_static(thing, MARK, False) is True
