"""The `@handler` decorator: what a function subscribes to, kept on the function itself."""

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar

from gateway.model import Backoff, Event, RetryPolicy
from gateway.notation.problems import describe, one_of
from gateway.notation.quantities import (
    DURATION_EXPECTED,
    LONGEST,
    MILLISECOND,
    format_duration,
    parse_duration,
)
from gateway.routes.checks import LONGEST_TIMEOUT, MAX_ATTEMPTS, MIN_ATTEMPTS

HandlerFunction = Callable[[Event, Any], Awaitable[None]]
"""The second argument is a Context, which lives above this module."""
Function = TypeVar("Function", bound=HandlerFunction)
Wait = timedelta | float | str
"""A timedelta, seconds, or a text such as `30s`."""

SPEC: Final = "__gateway_handler__"
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
) -> Callable[[Function], Function]:
    """Subscribe an `async def (event, ctx)` to event types.

    Types are globs: `invoice.paid`, `invoice.*`, `*`. The events come from the routes that list
    the function's module under `handlers`. `timeout`, `base` and `cap` are a timedelta, seconds,
    or a text such as "30s"; what is not given is as in `defaults` of `routes.yaml`. `name` is
    under what the deliveries are kept, `module.function` by default: give one before you rename
    or move a function, so that what waits for it still finds it.
    """
    spec = HandlerSpec(
        types=_check_types(types),
        timeout=_check_wait("timeout", timeout, MILLISECOND, LONGEST_TIMEOUT),
        attempts=_check_attempts(attempts),
        backoff=_check_backoff(backoff),
        base=_check_wait("base", base, timedelta(0), LONGEST),
        cap=_check_wait("cap", cap, timedelta(0), LONGEST),
        name=_check_name(name),
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


def _check_attempts(attempts: object) -> int | None:
    expected = f"a whole number from {MIN_ATTEMPTS} to {MAX_ATTEMPTS}"
    if attempts is None:
        return None
    if not isinstance(attempts, int) or isinstance(attempts, bool):
        raise TypeError(_refusal("attempts", attempts, expected))
    if not MIN_ATTEMPTS <= attempts <= MAX_ATTEMPTS:
        raise ValueError(_refusal("attempts", attempts, expected))
    return attempts


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
