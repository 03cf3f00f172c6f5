"""Run a handler's body on the real ledger, and commit it without settling its delivery."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncpg
import httpx
import orjson

from gateway.base.errors import Defer, LeaseLost, Reject, Retry, TransactionEnded
from gateway.base.model import Event, Lease
from gateway.base.secrets import Secret
from gateway.config.project import Project
from gateway.config.registry import Subscription
from gateway.ledger.connection import CONTENDED
from gateway.ledger.deliveries import ENDED_EARLY
from gateway.testing.events import claim_of
from gateway.testing.rehearse.database import (
    LONGEST_S,
    InventedRow,
    RehearsalDatabase,
    create_database,
)
from gateway.testing.rehearse.events import AGE, RehearsedEvent
from gateway.testing.rehearse.isolation import later_clock
from gateway.testing.rehearse.services import (
    Answers,
    GivenAnswer,
    RecordingTransport,
    make_stand_in,
    without_stand_ins,
)
from gateway.testing.rehearse.trace import Once, RehearsedRun, StepKind, inside, running
from gateway.testing.runner import observe_statements
from gateway.testing.throwaway import Databases
from gateway.worker.context import (
    NOT_GIVEN,
    Context,
    Database,
    NotGiven,
    Per,
    mark_effects,
    transaction_of,
)
from gateway.worker.effects import NotDone, Unknown
from gateway.worker.policy import summary
from gateway.worker.resources import WorkerContext
from gateway.worker.transaction import DeliveryTransaction

T = TypeVar("T")

_SAVEPOINT: Final = re.compile(r"(savepoint|rollback to|release) ")
_TALLY: Final = re.compile(r"\b(?:exists|count)\s*\(", re.IGNORECASE)
"""Matches queries that return a row even if they find nothing."""
_STATUS: Final = re.compile(r"[A-Z ]+?(?: \d+)? (\d+)")


class RehearsedTransaction(DeliveryTransaction):
    """The transaction of one run, which can be committed without settling the delivery."""

    async def commit(self) -> None:
        """Commit the handler's writes. The delivery stays as it is, so that it can run again."""
        async with self._lock:
            self._closed = True
            session = self._session
            if session is None:
                return
            if not await session.is_proven():
                raise TransactionEnded(ENDED_EARLY)
            await session.commit("select true", chain=False)
            self._session = None
            self._sessions.give_back(session)


class RehearsedContext(Context):
    """The real context on an observed transaction, with the calls inside `ctx.once` marked."""

    _transaction: RehearsedTransaction

    def __init__(
        self, *, lease: Lease, subscription: Subscription, worker: WorkerContext, run: RehearsedRun
    ) -> None:
        super().__init__(lease=lease, subscription=subscription, worker=worker)
        self._transaction = RehearsedTransaction(worker.work, subscription.timeout)
        self.db = Database(self._transaction)
        self._run = run
        observe_statements(self._transaction, self._observe)

    async def _observe(
        self,
        send: Callable[..., Awaitable[Any]],
        method: str,
        query: str,
        *args: Any,
        **options: Any,
    ) -> Any:
        if _SAVEPOINT.match(query):
            self._run.check()
            return await send(method, query, *args)
        first = args
        if method == "executemany":
            args = ([tuple(row) for row in args[0]],)
            first = next(iter(args[0]), ())
        step = self._run.begin(StepKind.STATEMENT, query, first)
        try:
            result = await send(method, query, *args, **options)
        except asyncpg.PostgresError as error:
            step.error = str(error)
            raise
        step.rows = _count(method, query, result)
        self._run.finish(step)
        await self._run.pause(step)
        return result

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


def _count(method: str, query: str, result: object) -> int | None:
    """Return how many rows a statement found or changed, or None if Postgres does not report it."""
    if method == "executemany":
        return None
    if method == "fetchval" and not result and _TALLY.search(query):
        return 0
    if isinstance(result, str):
        status = _STATUS.fullmatch(result)
        return int(status[1]) if status else None
    if isinstance(result, list):
        return len(result)
    return 0 if result is None else 1


API_KEY: Final = b"sk_test_rehearsal"

_LEASE: Final = """
update gateway.deliveries
set status = 'running', runs = runs + 1, lease_token = gen_random_uuid(), leased_at = now(),
    leased_until = now() + interval '1 day'
where id = $1
returning lease_token, runs
"""
_IS_BLOCKED: Final = """
select exists (select from pg_stat_activity
               where datname = current_database() and backend_type = 'client backend'
                 and wait_event_type = 'Lock')
"""
_UNKNOWN: Final = "select exists (select from gateway.effects where status <> 'done')"
_JOBS: Final = """
select event_id, type, body from gateway.events
where provider = 'publish' and route = $1
order by event_id
"""


class End(StrEnum):
    """How a run of the body ended."""

    DONE = "done"
    REJECTED = "rejected"
    DEFERRED = "deferred"
    FAILED = "failed"
    CONTENDED = "contended"
    LOST = "lost"
    KILLED = "killed"
    LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedDelivery:
    """An event that was claimed for a handler."""

    delivery_id: int
    subscription: Subscription
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """A run that has ended."""

    run: RehearsedRun
    end: End
    error: str | None = None
    raised: BaseException | None = None


class Sandbox:
    """The environment of the runs: a temporary database, the HTTP client and the resources."""

    def __init__(
        self,
        databases: Databases,
        project: Project,
        root: Path,
        started_at: datetime,
        *,
        answers: Sequence[GivenAnswer] = (),
        reads: Sequence[str] = (),
    ) -> None:
        self._databases = databases
        self._project = project
        self._root = root
        self._started_at = started_at
        wire = RecordingTransport(Answers(started_at - AGE, answers), reads)
        self._http = httpx.AsyncClient(transport=wire, trust_env=False)
        self._current: RehearsalDatabase | None = None
        self._claims = 0

    async def close(self) -> None:
        """Close all connections and drop the database."""
        await self._drop()
        await self._http.aclose()

    async def fresh(self, rows: Sequence[InventedRow] = (), *, is_skewed: bool = False) -> None:
        """Restore the database to the schema's initial state, and insert these rows.

        With `is_skewed`, its sequences have advanced.
        """
        if self._current is None or not await self._current.reset():
            await self._drop()
            self._current = await create_database(self._databases, self._started_at)
        await self._current.fill(rows)
        if is_skewed:
            await self._current.skew()
        self._claims = 0

    async def renew(self) -> None:
        """Replace a database whose state is unknown."""
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await self._drop()
        await self.fresh()

    async def accepts(self, rows: Sequence[InventedRow]) -> bool:
        """Return whether the database accepts such rows in its initial state."""
        try:
            await self.fresh(rows)
        except (asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        return True

    async def deliver(self, event: RehearsedEvent, subscription: Subscription) -> RehearsedDelivery:
        """Claim the event for the handler.

        An event that is claimed later has a later `received_at`.
        """
        self._claims += 1
        received_at = self._started_at + timedelta(milliseconds=self._claims)
        received = replace(event.received, received_at=received_at)
        claimed = await self.database.clients.claimer.claim(
            claim_of(received, (subscription.handler,))
        )
        return RehearsedDelivery(
            delivery_id=claimed.delivery_ids[0],
            subscription=subscription,
            event=received,
        )

    def make_run(self, **stops: Any) -> RehearsedRun:
        """Return a run that has not started, with the points at which it stops."""
        return RehearsedRun(root=self._root, **stops)

    async def run(
        self,
        delivered: RehearsedDelivery,
        run: RehearsedRun | None = None,
        *,
        known: Sequence[Any] = (),
        attempt: int = 1,
        is_later: bool = False,
    ) -> EndedRun:
        """Run the body once under a new lease, and commit its writes.

        With `is_later`, the clock of the user's modules has advanced.

        `known` are the payloads that are known at this point, the newest first. The default is the
        event's own payload.
        """
        run = run or self.make_run()
        run.known = list(known) or [delivered.event.payload]
        [row] = await self.database.control.fetch(_LEASE, delivered.delivery_id)
        lease = Lease(
            delivery_id=delivered.delivery_id,
            token=row["lease_token"],
            run=row["runs"],
            handler=delivered.subscription.handler,
            attempt=attempt,
            event=delivered.event,
        )
        context = RehearsedContext(
            lease=lease,
            subscription=delivered.subscription,
            worker=self._worker(),
            run=run,
        )
        with running(run), later_clock(self._root) if is_later else nullcontext():
            raised, is_late = await _raised_by(delivered, context, run)
        if run.is_killed:
            transaction_of(context).abandon()
        else:
            await transaction_of(context).close()
        return _ended(run, raised, is_late=is_late)

    async def jobs(self, queue: str) -> list[tuple[str, str, Any]]:
        """Return the id, type and payload of each job that was published to a queue."""
        rows = await self.database.control.fetch(_JOBS, queue)
        return [(row["event_id"], row["type"], orjson.loads(row["body"])) for row in rows]

    async def has_unknown_effects(self) -> bool:
        """Return whether there is an effect with an unknown outcome.

        If its delivery is done, `gateway effects` lists it. Otherwise a later run, or a person who
        replays it, resolves it.
        """
        found: bool = await self.database.control.fetchval(_UNKNOWN)
        return found

    async def is_blocked(self) -> bool:
        """Return whether a transaction waits for another one's lock."""
        blocked: bool = await self.database.clients.ledger.fetchval(_IS_BLOCKED)
        return blocked

    @property
    def database(self) -> RehearsalDatabase:
        """The database of the current schedule."""
        if self._current is None:
            raise RuntimeError("nothing is set up yet: call fresh() first")
        return self._current

    def _worker(self) -> WorkerContext:
        resources = self._project.registry.resources
        return self.database.clients.worker_context(
            self._project,
            self._http,
            patience=timedelta(seconds=LONGEST_S),
            api_keys={route.name: Secret(API_KEY) for route in self._project.config.routes},
            resources={item.name: make_stand_in(item.name, item.function) for item in resources},
        )

    async def _drop(self) -> None:
        database, self._current = self._current, None
        if database is not None:
            await database.close()
            await self._databases.drop(database.url)


async def _raised_by(
    delivered: RehearsedDelivery, context: RehearsedContext, run: RehearsedRun
) -> tuple[BaseException | None, bool]:
    """Run the body and commit. Returns the exception it raised, and whether it timed out."""
    timeout = asyncio.timeout(LONGEST_S)
    try:
        async with timeout:
            await delivered.subscription.function(delivered.event, context)
            end = run.begin(StepKind.END, "commit")
            await context.commit()
            run.finish(end)
    except BaseException as error:  # user code may raise any exception
        if _is_ours_to_obey(error):
            raise
        return error, timeout.expired()
    return None, False


def _is_ours_to_obey(error: BaseException) -> bool:
    """Return whether the exception must end the rehearsal itself."""
    task = asyncio.current_task()
    is_cancelled = task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, asyncio.CancelledError) and is_cancelled
    )


def _ended(run: RehearsedRun, raised: BaseException | None, *, is_late: bool) -> EndedRun:
    if run.is_killed:
        return EndedRun(run=run, end=End.KILLED)
    if raised is None:
        return EndedRun(run=run, end=End.DONE)
    end = End.LATE if is_late else _end_of(raised)
    error = f"did not end within {LONGEST_S:g} s" if is_late else summary(raised)
    return EndedRun(run=run, end=end, error=error, raised=raised)


def _end_of(error: BaseException) -> End:
    match error:
        case Reject():
            return End.REJECTED
        case Retry() | Defer():
            return End.DEFERRED
        case LeaseLost():
            return End.LOST
    return End.CONTENDED if isinstance(error, CONTENDED) else End.FAILED
