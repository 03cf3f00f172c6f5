"""The `@handler` decorator: what a function subscribes to, kept on the function itself."""

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar

from gateway.model import Backoff, Event, OnDead, Rate, RetryPolicy
from gateway.notation.problems import describe, one_of
from gateway.notation.quantities import (
    DURATION_EXPECTED,
    LONGEST,
    MILLISECOND,
    RATE_EXPECTED,
    format_duration,
    parse_duration,
    parse_rate,
)
from gateway.registry.key_path import EXPECTED as PATH_EXPECTED
from gateway.registry.key_path import KeyPath
from gateway.routes.checks import LONGEST_TIMEOUT, MAX_ATTEMPTS, MIN_ATTEMPTS

HandlerFunction = Callable[[Event, Any], Awaitable[None]]
"""The second argument is a Context, which lives above this module."""
Function = TypeVar("Function", bound=HandlerFunction)
Wait = timedelta | float | str
"""A timedelta, seconds, or a text such as `30s`."""

SPEC: Final = "__gateway_handler__"
MOST_AT_ONCE: Final = 1000
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSpec:
    """What a decorated function asks for; None is what the configuration says."""

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

    def retry(self, defaults: RetryPolicy) -> RetryPolicy:
        """The defaults, with what the function says over them."""
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
    once_per: str | None = None,
    order_by: str | None = None,
    on_dead: OnDead | Literal["pass", "block"] | None = None,
    concurrency: int | None = None,
    rate: str | None = None,
) -> Callable[[Function], Function]:
    """Subscribe an `async def (event, ctx)` to event types.

    Types are globs: `invoice.paid`, `invoice.*`, `*`. The events come from the routes that list
    the function's module under `handlers`. `timeout`, `base` and `cap` are a timedelta, seconds,
    or a text such as "30s"; what is not given is as in `defaults` of `routes.yaml`. `name` is
    under what the deliveries are kept, `module.function` by default: give one before you rename
    or move a function, so that what waits for it still finds it.

    `once_per` is the path of a value in the payload (`data.object.id`): of all events with the same
    value the first to finish counts, the others end as done without running. `order_by` is such a
    path, too: of one value one delivery at a time runs, in the order in which the events were
    received; one that waits for its retry is waited for, and a dead one with `on_dead="block"`.
    `concurrency` is how many deliveries of the handler run at once, and `rate` how many start in a
    period ("100/m"), over all workers.
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
    """What `@handler` left on something. Looked up without running any of its code."""
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
    if not isinstance(path, str):
        raise TypeError(_refusal(option, path, PATH_EXPECTED))
    try:
        return KeyPath.parse(path)
    except ValueError:
        raise ValueError(_refusal(option, path, PATH_EXPECTED)) from None


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
    raise ValueError(_refusal("name", name, "letters, digits and . _ : -"))


def _refusal(option: str, value: object, expected: str) -> str:
    return f"@handler: {option}: found {describe(value)}; expected {expected}"
