"""What a handler gets beside the event: its transaction, and tools that are safe to run twice."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx
import structlog

from gateway.ledger.queries import QUERIES
from gateway.model import Lease
from gateway.registry import Subscription
from gateway.run.bench import Workbench
from gateway.run.effects import Effects, NotDone, Unknown
from gateway.run.hiding import handler_log
from gateway.run.publish import Outbox, job_arguments
from gateway.run.resources import Resources
from gateway.run.transaction import DeliveryTransaction
from gateway.run.upsert import (
    UNVERSIONED,
    Unversioned,
    arguments,
    upsert_statement,
)

if TYPE_CHECKING:  # 0.2 s and 30 MB: only for handlers that ask for it
    from stripe import StripeClient


class Database:
    """The delivery's transaction: commits with the delivery's completion, or not at all.

    Opened at first use; one call at a time (calls from several tasks take turns); closed when the
    delivery is settled.
    """

    def __init__(self, transaction: DeliveryTransaction) -> None:
        self._transaction = transaction

    async def execute(self, query: str, *args: Any) -> str:
        """Run a statement; return its status, such as `UPDATE 1`."""
        return await self._transaction.execute(query, *args)

    async def executemany(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once per row of arguments."""
        await self._transaction.executemany(query, rows)

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """Return all rows."""
        return await self._transaction.fetch(query, *args)

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        """Return the first row, or None."""
        return await self._transaction.fetchrow(query, *args)

    async def fetchval(self, query: str, *args: Any, column: int = 0) -> Any:
        """Return one value of the first row, or None."""
        return await self._transaction.fetchval(query, *args, column=column)

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Begin a savepoint: what fails inside is undone, and the rest of the transaction goes on.

        Use it as `async with ctx.db.transaction():`.
        """
        return self._transaction.savepoint()


class Context:
    """The second argument of every handler."""

    def __init__(self, *, lease: Lease, subscription: Subscription, bench: Workbench) -> None:
        self._lease = lease
        self._bench = bench
        self._transaction = _make_transaction(lease, subscription, bench)
        self.db = Database(self._transaction)
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
            return await self._transaction.run_own(query, *row) is not None
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
        not_done: NotDone = (),
        **kwargs: Any,
    ) -> Any:
        """Call `func(*args, **kwargs)`, unless an earlier run of this delivery did, and return its
        result as JSON. A rerun gets the kept result.

        The call is recorded before it is made. If it fails, it is either known not to be done (a
        refused connection, `gateway.NotSent`, an answer such as 401, 404 or 422, an exception in
        `not_done`), and the next run calls again; or its outcome is unknown (a timeout, a 500, a
        worker that died). Then `unknown="retry"` calls again: give the callee
        `ctx.idempotency_key(name)`. `unknown="skip"` does not and returns None; `gateway effects`
        lists the effect until a person resolves it. docs/handlers.md has the whole table.
        """
        if not callable(func):
            raise TypeError(
                f"ctx.once({name!r}) needs a function and its arguments, found {func!r:.80}: "
                "it decides itself whether to call it"
            )
        return await self._effects.once(name, partial(func, *args, **kwargs), unknown, not_done)

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
        row = await self._transaction.run_own(QUERIES["publish"], *job_arguments(job))
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


def _make_transaction(
    lease: Lease, subscription: Subscription, bench: Workbench
) -> DeliveryTransaction:
    if bench.traces is None:
        return DeliveryTransaction(bench.work, subscription.timeout)
    from gateway.run.traced import TracedTransaction  # opentelemetry

    return TracedTransaction(
        bench.work,
        subscription.timeout,
        traces=bench.traces,
        tells_text=lease.event.route not in bench.vault.routes,
    )


def transaction_of(context: Context) -> DeliveryTransaction:
    """Return the transaction behind `ctx.db`, for the code that commits or undoes the run."""
    return context._transaction


def trace_of(context: Context) -> str | None:
    """For whoever sends the event on: where we are, as a `traceparent`."""
    traces = context._bench.traces
    return None if traces is None else traces.here()


async def finish_effects(context: Context) -> None:
    """Before the delivery completes: let people see effects whose outcome is unknown."""
    effects = vars(context).get("_effects")  # a handler that called nothing has none
    if effects is not None:
        await effects.finish()


def outbox_of(context: Context) -> Outbox:
    """For whoever commits the run: what goes out with it."""
    return context._outbox
