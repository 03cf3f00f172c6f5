"""The `@resource` decorator: what a worker opens at its start and its handlers share."""

import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

ResourceFunction = Callable[[], AsyncIterator[Any]]
Opened = TypeVar("Opened")

MARK: Final = "__gateway_resource__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Something that is opened once per worker."""

    name: str
    function: ResourceFunction
    place: str


def resource(function: Callable[[], AsyncIterator[Opened]]) -> Callable[[], AsyncIterator[Opened]]:
    """Open something once per worker, for all its handlers: `ctx.resources.<function's name>`.

    An `async def` without arguments that yields it once: what stands before the `yield` runs when
    the worker starts, what stands after it when the worker has finished its deliveries.
    """
    if not inspect.isasyncgenfunction(function):
        raise TypeError(f"@resource on {function!r}, which is not an async def that yields")
    if inspect.signature(function).parameters:
        raise TypeError(f"@resource on {function.__name__}, which takes arguments")
    setattr(function, MARK, True)
    return function


def is_resource(thing: object) -> bool:
    """Whether `@resource` marked something. Looked up without running any of its code."""
    return inspect.getattr_static(thing, MARK, False) is True
