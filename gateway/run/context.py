"""What a handler gets beside the event: its transaction, and tools that are safe to run twice."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import httpx
import structlog

from gateway.errors import StorageUnavailable, TransactionEnded
from gateway.ledger.connection import LOST, TROUBLE, Connection
from gateway.ledger.deliveries import ENDED_EARLY, settle_done
from gateway.ledger.queries import QUERIES
from gateway.ledger.sessions import OWN_ROLE, Session, Sessions
from gateway.model import Lease
from gateway.registry import Subscription
from gateway.run.bench import Workbench
from gateway.run.effects import Effects, Unknown
from gateway.run.hiding import handler_log
from gateway.run.publish import Outbox, job_arguments
from gateway.run.resources import Resources
from gateway.run.statements import check_statement
from gateway.run.upsert import (
    UNVERSIONED,
    Unversioned,
    arguments,
    upsert_statement,
)

if TYPE_CHECKING:  # 0.2 s and 30 MB: only for handlers that ask for it
    from stripe import StripeClient

CLOSED: Final = "ctx.db is closed: this delivery has been settled"


class Database:
    """The delivery's transaction: commits with the delivery's completion, or not at all.

    Opened at first use; one call at a time (calls from several tasks take turns); closed when the
    delivery is settled.
    """

    def __init__(self, sessions: Sessions, timeout: timedelta) -> None:
        self._sessions = sessions
        self._timeout = timeout
        self._turn = asyncio.Lock()
        self._session: Session | None = None
        self._savepoints = 0
        self._closed = False
        self._lost = False

    async def execute(self, query: str, *args: Any) -> str:
        """Runs a statement; returns its status, such as `UPDATE 1`."""
        async with self._turn:
            return await (await self._open_foreign(query)).execute(query, *args)

    async def executemany(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        """Runs a statement once per row of arguments."""
        async with self._turn:
            await (await self._open_foreign(query)).executemany(query, rows)

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """All rows."""
        async with self._turn:
            return await (await self._open_foreign(query)).fetch(query, *args)

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        """The first row, or None."""
        async with self._turn:
            return await (await self._open_foreign(query)).fetchrow(query, *args)

    async def fetchval(self, query: str, *args: Any, column: int = 0) -> Any:
        """One value of the first row, or None."""
        async with self._turn:
            connection = await self._open_foreign(query)
            return await connection.fetchval(query, *args, column=column)

    async def run_own(self, query: str, *args: Any) -> asyncpg.Record | None:
        """Runs a statement of our own making, which leaves nothing behind in the session."""
        async with self._turn:
            return await (await self._open()).fetchrow(query, *args)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A savepoint: what fails inside is undone, and the rest of the transaction goes on."""
        self._savepoints += 1
        name = f"gateway_{self._savepoints}"
        await self.execute(f"savepoint {name}")
        try:
            yield
        except BaseException:
            with suppress(*TROUBLE, RuntimeError):  # what went wrong first is what counts
                await self.execute(f"rollback to savepoint {name}; release savepoint {name}")
            raise
        await self.execute(f"release savepoint {name}")

    @property
    def used(self) -> bool:
        """Whether the handler has begun a transaction."""
        return self._session is not None

    @property
    def lost(self) -> bool:
        """Whether the server went away under the handler."""
        return self._lost or (self._session is not None and self._session.connection.is_closed())

    async def complete(self, lease: Lease, *, chain: bool) -> None:
        """Settles the delivery as done in the handler's own transaction and commits both.

        With `chain`, the connection is left ready for the next delivery.
        """
        async with self._turn:
            self._closed = True
            session = self._session
            if session is None:
                raise RuntimeError("the handler has begun no transaction")
            if not self.lost and not session.connection.is_in_transaction():
                raise TransactionEnded(ENDED_EARLY)
            await settle_done(session, lease, chain=chain)
            self._session = None
            self._sessions.give_back(session)

    async def check_transaction(self) -> None:
        """Raise TransactionEnded if the handler ended the transaction that was begun for it."""
        session = self._session
        if session is not None and session.is_foreign and not await session.is_proven():
            raise TransactionEnded(ENDED_EARLY)

    async def take_own_role(self) -> None:
        """Leave the role that the handler may have taken, for statements of the gateway's own."""
        if self._session is not None and self._session.is_foreign:
            await self._session.connection.execute(OWN_ROLE)

    async def is_read_only(self) -> bool:
        """Return whether the server itself refuses writes, not only the handler's transaction."""
        return self._session is None or await self._session.is_read_only()

    async def close(self) -> None:
        """Undoes what is not committed and gives the connection back."""
        self._closed = True
        self._lost = self.lost
        session, self._session = self._session, None
        if session is None:
            return
        try:
            await session.roll_back()
        except BaseException as error:
            self._sessions.drop(session)
            if not isinstance(error, TROUBLE):
                raise
        else:
            self._sessions.give_back(session)

    def abandon(self) -> None:
        """Cuts the connection, so that a handler that cannot be stopped can no longer write."""
        self._closed = True
        if self._session is not None:
            self._sessions.drop(self._session)

    def give_up(self) -> None:
        """For a server that takes no writes any more: none of its connections is used again."""
        self.abandon()
        self._sessions.drop_idle()

    async def _open_foreign(self, query: str) -> Connection:
        """For a statement of the handler's: it may change the session, not only the data.

        Raise StatementRefused if it must not be sent.
        """
        check_statement(query)
        connection = await self._open()
        if self._session is not None:
            self._session.is_foreign = True
        return connection

    async def _open(self) -> Connection:
        if self._closed:
            raise RuntimeError(CLOSED)
        if self._session is None:
            try:
                self._session = await self._begin()
            except (StorageUnavailable, *LOST):
                self._lost = True
                self._sessions.drop_idle()
                raise
            if self._closed:  # settled while the transaction was being opened
                await self.close()
                raise RuntimeError(CLOSED)
        return self._session.connection

    async def _begin(self) -> Session:
        session = await self._sessions.take()
        try:
            await session.begin(self._timeout)
        except BaseException:
            self._sessions.drop(session)
            raise
        return session


class Context:
    """The second argument of every handler."""

    def __init__(self, *, lease: Lease, subscription: Subscription, bench: Workbench) -> None:
        self._lease = lease
        self._bench = bench
        self.db = _database(lease, subscription, bench)
        """The delivery's transaction in the gateway's database, with asyncpg's methods."""
        self.http: httpx.AsyncClient = bench.http
        """A shared httpx client."""
        self.attempt: int = lease.attempt
        """1 on the first run, and again on the first run after a replay."""
        self.log: structlog.stdlib.BoundLogger = handler_log(bench.config, lease.event).bind(
            route=lease.event.route,
            event_id=lease.event.id,
            delivery_id=lease.delivery_id,
            handler=lease.handler,
            attempt=lease.attempt,
        )
        """A logger whose lines carry route, event id and delivery id, and no redacted value."""
        # Not a bound method: in a reference cycle the body would stay until a garbage collection.
        self._make_key = partial(_idempotency_key, lease.event.route, lease.event.id, lease.handler)
        self._outbox = Outbox(bench.config, bench.registry, bench.vault, self._make_key)

    async def upsert(
        self,
        table: str,
        *,
        key: Mapping[str, Any],
        values: Mapping[str, Any],
        version: Any = UNVERSIONED,
    ) -> bool:
        """Inserts the row with this key, or changes it to these values.

        With `version`, kept in the table's `version` column, older state never overwrites newer.
        The key's columns need a unique index. Returns whether the row was written.
        """
        if not key:
            raise ValueError("ctx.upsert needs at least one key column")
        if version is None:
            raise ValueError(
                "ctx.upsert got version=None, which would be no guard at all: "
                "leave it out, or pass a time or number that grows"
            )
        query = upsert_statement(
            table, tuple(key), tuple(values), not isinstance(version, Unversioned)
        )
        row = arguments(key, values, version, self._lease.event.received_at)
        try:
            return await self.db.run_own(query, *row) is not None
        except asyncpg.InvalidColumnReferenceError as error:
            raise ValueError(
                f"ctx.upsert({table!r}) needs a unique index on ({', '.join(key)}): {error}"
            ) from error
        except asyncpg.DataError as error:
            if not isinstance(version, str):
                raise
            raise ValueError(
                f"ctx.upsert({table!r}): version={version!r:.60} is text: "
                "pass a time, such as datetime.fromisoformat(...), or a number"
            ) from error

    async def once(
        self,
        name: str,
        func: Callable[..., Any | Awaitable[Any]],
        *args: Any,
        unknown: Unknown = "retry",
        **kwargs: Any,
    ) -> Any:
        """Calls `func(*args, **kwargs)` unless this delivery has done so before, and returns what
        came of it, as JSON: a rerun gets the kept result.

        That the call is about to be made is on record before it is made. Where its end is not known
        (a time-out, a worker that died), `unknown="retry"` calls again: give the callee
        `ctx.idempotency_key(name)`. `unknown="skip"` never calls a second time, and returns None.
        `gateway.NotSent` and a refused connection prove that nothing was sent: it is tried again.
        """
        if not callable(func):
            raise TypeError(
                f"ctx.once({name!r}) needs a function and its arguments, found {func!r:.80}: "
                "it decides itself whether to call it"
            )
        return await self._effects.once(name, partial(func, *args, **kwargs), unknown)

    async def publish(
        self, queue: str, payload: Any, key: str | None = None, type: str | None = None
    ) -> bool:
        """Follow-up work: a job for the handlers of a queue (a route with `provider: publish`),
        committed with what this handler writes, or not at all.

        The same key twice is one job, for as long as the queue's keys are kept; without a key it is
        one per call and delivery. The job's type is `type`, or else the queue's name. Returns
        whether it is a new job.
        """
        job = self._outbox.make(queue, payload, key, type)
        if self._bench.traces is not None:
            job = job._replace(trace=self._bench.traces.here())
        row = await self.db.run_own(QUERIES["publish"], *job_arguments(job))
        if row is None or not row["is_new"]:
            if row is not None and row["differs"]:
                self.log.warning("published_with_another_payload", queue=queue, key=job.envelope.id)
            return False
        self._outbox.note(job, row["delivery_ids"])
        return True

    def idempotency_key(self, name: str = "") -> str:
        """A key that is the same on every retry and replay of this delivery, and on no other.

        For APIs that deduplicate by themselves, such as Stripe's `Idempotency-Key`.
        """
        return self._make_key(name)

    @cached_property
    def resources(self) -> Resources:
        """What the `@resource` functions of the handler modules have opened, by their names."""
        return Resources(self._bench.resources)

    @cached_property
    def stripe(self) -> "StripeClient":
        """A Stripe client with the route's `api_key`, whose writes carry an idempotency key that
        is the same in every run of this delivery. Use its methods that end in `_async`."""
        from gateway.run.stripe_client import make_stripe_client  # imports stripe

        route = self._lease.event.route
        if route not in self._bench.api_keys:
            raise RuntimeError(
                f'ctx.stripe needs "api_key: env:..." on route {route!r} in routes.yaml'
            )
        api_key = self._bench.api_keys[route].reveal().decode()
        return make_stripe_client(api_key, self._bench.http, self._make_key)

    @cached_property
    def _effects(self) -> Effects:
        return Effects(self._bench.ledger, self._lease, self._bench.vault, self.log)


def _idempotency_key(route: str, event_id: str, handler: str, name: str) -> str:
    parts = (route, event_id, handler, name)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass"))
    return f"gw_{digest.hexdigest()[:40]}"


def _database(lease: Lease, subscription: Subscription, bench: Workbench) -> Database:
    if bench.traces is None:
        return Database(bench.work, subscription.timeout)
    from gateway.run.traced import TracedDatabase  # opentelemetry

    return TracedDatabase(
        bench.work,
        subscription.timeout,
        traces=bench.traces,
        tells_text=lease.event.route not in bench.vault.routes,
    )


def trace_of(context: Context) -> str | None:
    """For whoever sends the event on: where we are, as a `traceparent`."""
    traces = context._bench.traces
    return None if traces is None else traces.here()


def outbox_of(context: Context) -> Outbox:
    """For whoever commits the run: what goes out with it."""
    return context._outbox
