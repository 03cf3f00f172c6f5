"""One run of a handler under observation: what it raised, and where it is to die."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from gateway.model import Event
from gateway.registry import HandlerFunction
from gateway.run.context import Context, transaction_of

STATEMENTS: Final = ("execute", "executemany", "fetch", "fetchrow", "fetchval", "run_own")
"""Methods of the transaction, each of which is one statement; so is each end of a savepoint."""

Raised = tuple[Exception, TracebackType | None]
"""With the frames that are the handler's."""


@dataclass(slots=True, kw_only=True)
class CrashPoint:
    """After which statement of `ctx.db`, or which request of `ctx.http`, the run dies."""

    statements: int | None
    calls: int | None
    is_reached: bool = False
    statements_seen: int = 0
    calls_seen: int = 0

    def see_statement(self) -> bool:
        """Whether this is the one."""
        self.statements_seen += 1
        return self._reach(self.statements_seen == self.statements)

    def see_call(self) -> bool:
        """Whether this is the one."""
        self.calls_seen += 1
        return self._reach(self.calls_seen == self.calls)

    def see_start(self) -> bool:
        """Whether the run dies before it does anything."""
        return self._reach(self.statements == 0)

    def _reach(self, is_here: bool) -> bool:
        self.is_reached = self.is_reached or is_here
        return is_here


class Run:
    """Takes the place of the handler's function for one run."""

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
        except Exception as error:  # the user's own code
            trace = error.__traceback__
            self.raised = error, None if trace is None else trace.tb_next
            raise

    async def see_call(self) -> None:
        """Says that a request has been made."""
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
        """Never goes on, as a killed process never does: not even a `finally` is run."""
        self.died.set()
        await asyncio.get_running_loop().create_future()
