"""One observed run of a handler: the exception it raised, and the point at which it must crash."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from gateway.base.model import Event
from gateway.config.registry import HandlerFunction
from gateway.worker.context import Context, transaction_of

STATEMENTS: Final = ("execute", "executemany", "fetch", "fetchrow", "fetchval", "run_own")
"""The methods of the transaction that send one statement each.

Opening and closing a savepoint counts as one statement each, too.
"""

Raised = tuple[Exception, TracebackType | None]
"""An exception, with the part of its traceback that starts in the handler."""


@dataclass(slots=True, kw_only=True)
class CrashPoint:
    """The statement of `ctx.db`, or the request of `ctx.http`, after which the run crashes."""

    statements: int | None
    calls: int | None
    is_reached: bool = False
    statements_seen: int = 0
    calls_seen: int = 0

    def see_statement(self) -> bool:
        """Count a statement, and return whether the run crashes after it."""
        self.statements_seen += 1
        return self._reach(self.statements_seen == self.statements)

    def see_call(self) -> bool:
        """Count a request, and return whether the run crashes after it."""
        self.calls_seen += 1
        return self._reach(self.calls_seen == self.calls)

    def see_start(self) -> bool:
        """Return whether the run crashes before its first statement."""
        return self._reach(self.statements == 0)

    def _reach(self, is_here: bool) -> bool:
        self.is_reached = self.is_reached or is_here
        return is_here


class CrashRun:
    """Replaces the handler's function for one run."""

    def __init__(self, function: HandlerFunction, crash: CrashPoint | None) -> None:
        self._function = function
        self._crash = crash
        self.raised: Raised | None = None
        self.died = asyncio.Event()
        self.context: Context | None = None
        self.task: asyncio.Task[Any] | None = None

    async def __call__(self, event: Event, ctx: Context) -> None:
        __tracebackhide__ = True
        self.context, self.task = ctx, asyncio.current_task()
        if self._crash is not None:
            transaction = transaction_of(ctx)
            for name in STATEMENTS:
                setattr(transaction, name, self._counted(getattr(transaction, name)))
            if self._crash.see_start():
                await self._die()
        try:
            await self._function(event, ctx)
        except Exception as error:  # user code may raise any exception
            trace = error.__traceback__
            self.raised = error, None if trace is None else trace.tb_next
            raise

    async def see_call(self) -> None:
        """Count a request, and crash if it is the crash point."""
        if self._crash is not None and self._crash.see_call():
            await self._die()

    def _counted(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*args: Any, **options: Any) -> Any:
            result = await method(*args, **options)
            if self._crash is not None and self._crash.see_statement():
                await self._die()
            return result

        return counted

    async def _die(self) -> None:
        """Suspend forever, like a killed process: not even a `finally` block runs."""
        self.died.set()
        await asyncio.get_running_loop().create_future()
