"""Ends tasks in which arq and redis-py run."""

import asyncio
from typing import Any, Final

ASK_EVERY_S: Final = 0.2
ASK_TIMES: Final = 15


async def end(task: asyncio.Task[Any]) -> None:
    """Cancels until the task has ended: a single cancellation was seen to be swallowed on its way
    through the Redis client, after which the task ran on and a shutdown waited for it for ever."""
    for _ in range(ASK_TIMES):
        task.cancel()
        done, _pending = await asyncio.wait({task}, timeout=ASK_EVERY_S)
        if done:
            # Redis that goes away ends several tasks with the same error, of which one is logged.
            # The event loop would print the others ("Task exception was never retrieved").
            if not task.cancelled():
                task.exception()
            return
