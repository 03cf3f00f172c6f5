"""The context of a rehearsed run: the real one, observed at every statement and call."""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

import asyncpg

from gateway.base.errors import TransactionEnded
from gateway.base.model import Lease
from gateway.config.registry import Subscription
from gateway.ledger.deliveries import ENDED_EARLY
from gateway.ledger.sessions import Sessions
from gateway.testing.rehearse.stand_ins import without_stand_ins
from gateway.testing.rehearse.trace import Once, RehearsedRun, StepKind, inside
from gateway.worker.context import (
    NOT_GIVEN,
    Context,
    Database,
    NotGiven,
    Per,
    mark_effects,
)
from gateway.worker.effects import NotDone, Unknown
from gateway.worker.parts import WorkerContext
from gateway.worker.transaction import DeliveryTransaction

T = TypeVar("T")

_SAVEPOINT: Final = re.compile(r"(savepoint|rollback to|release) ")
_TALLY: Final = re.compile(r"\b(?:exists|count)\s*\(", re.IGNORECASE)
"""Matches queries that return a row even if they find nothing."""
_STATUS: Final = re.compile(r"[A-Z ]+?(?: \d+)? (\d+)")


class WatchedTransaction(DeliveryTransaction):
    """The transaction of one run, which can be committed without settling the delivery."""

    def __init__(self, sessions: Sessions, timeout: timedelta, run: RehearsedRun) -> None:
        super().__init__(sessions, timeout)
        self._run = run

    async def execute(self, query: str, *args: Any) -> str:
        execute = super().execute
        if _SAVEPOINT.match(query):
            self._run.check()
            return await execute(query, *args)
        return await self._watch(query, args, lambda: execute(query, *args))

    async def executemany(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        executemany = super().executemany
        listed = [tuple(row) for row in rows]
        first = listed[0] if listed else ()
        await self._watch(query, first, lambda: executemany(query, listed), lambda _: None)

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        fetch = super().fetch
        return await self._watch(query, args, lambda: fetch(query, *args))

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        fetchrow = super().fetchrow
        return await self._watch(query, args, lambda: fetchrow(query, *args))

    async def fetchval(self, query: str, *args: Any, column: int = 0) -> Any:
        fetchval = super().fetchval
        return await self._watch(
            query,
            args,
            lambda: fetchval(query, *args, column=column),
            lambda value: 0 if _TALLY.search(query) and not value else _count(value),
        )

    async def run_own(self, query: str, *args: Any) -> asyncpg.Record | None:
        run_own = super().run_own
        return await self._watch(query, args, lambda: run_own(query, *args))

    async def commit(self) -> None:
        """Commit the handler's writes. The delivery stays as it is, so that it can run again."""
        async with self._turn:
            self._closed = True
            session = self._session
            if session is None:
                return
            if not await session.is_proven():
                raise TransactionEnded(ENDED_EARLY)
            await session.commit("select true", chain=False)
            self._session = None
            self._sessions.give_back(session)

    async def _watch(
        self,
        query: str,
        args: Sequence[Any],
        send: Callable[[], Awaitable[T]],
        count: Callable[[object], int | None] | None = None,
    ) -> T:
        step = self._run.begin(StepKind.STATEMENT, query, tuple(args))
        try:
            result = await send()
        except asyncpg.PostgresError as error:
            step.error = str(error)
            raise
        step.rows = (count or _count)(result)
        self._run.finish(step)
        await self._run.pause(step)
        return result


class WatchedContext(Context):
    """The real context on an observed transaction, with the calls inside `ctx.once` marked."""

    _transaction: WatchedTransaction

    def __init__(
        self, *, lease: Lease, subscription: Subscription, bench: WorkerContext, run: RehearsedRun
    ) -> None:
        super().__init__(lease=lease, subscription=subscription, bench=bench)
        self._transaction = WatchedTransaction(bench.work, subscription.timeout, run)
        self.db = Database(self._transaction)
        self._run = run

    async def once(
        self,
        name: str,
        func: Callable[..., Any | Awaitable[Any]],
        *args: Any,
        unknown: Unknown = "retry",
        not_done: NotDone = (),
        per: Per | NotGiven = NOT_GIVEN,
        **kwargs: Any,
    ) -> Any:
        is_called = False

        async def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_called
            is_called = True
            result = func(*args, **kwargs)
            return without_stand_ins(await result if inspect.isawaitable(result) else result)

        self._run.check()
        if not callable(func):
            return await super().once(name, func, unknown=unknown)
        once = Once(name=name, unknown=unknown, per=None if per is NOT_GIVEN else str(per))
        with inside(once):
            result = await super().once(
                name, call, *args, unknown=unknown, not_done=not_done, per=per, **kwargs
            )
        if not is_called:
            self._run.kept.append(once)
        return result

    async def commit(self) -> None:
        """Commit the handler's writes. The delivery stays as it is, so that it can run again."""
        await mark_effects(self)
        await self._transaction.commit()


def _count(result: object) -> int | None:
    """Return how many rows a statement found or changed, or None if Postgres does not report it."""
    if isinstance(result, str):
        status = _STATUS.fullmatch(result)
        return int(status[1]) if status else None
    if isinstance(result, list):
        return len(result)
    return 0 if result is None else 1
