"""Waits on conditions instead of sleeping."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

PATIENCE_S: Final = 60.0
"""When to give up. Nothing waits this long unless it is broken: a starved machine may be slow by
seconds, and no test measures time with it."""


async def until(
    condition: Callable[[], Any] | Callable[[], Awaitable[Any]], *, within_s: float = PATIENCE_S
) -> Any:
    """Returns the first true answer of the condition; fails with the last one in time."""
    deadline = time.monotonic() + within_s
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"still {answer!r} after {within_s:g} s")
        await asyncio.sleep(0.02)
