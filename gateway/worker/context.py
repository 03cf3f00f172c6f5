"""The handler context: the delivery's transaction, and helpers that are safe to repeat."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, cast

import asyncpg
import httpx
import structlog

from gateway.base.errors import Reject
from gateway.base.model import Lease
from gateway.config.registry import Subscription
from gateway.config.registry.key_path import key_of
from gateway.ledger.connection import QUERIES
from gateway.ledger.effects import mark_effects_unknown
from gateway.privacy.redaction import REDACTED
from gateway.worker.effects import Effects, NotDone, Unknown
from gateway.worker.idempotency import make_key, make_scoped_key, make_stripe_key
from gateway.worker.publish import Outbox, job_arguments
from gateway.worker.resources import Resources, WorkerContext
from gateway.worker.statements import (
    UNVERSIONED,
    Unversioned,
    arguments,
    upsert_statement,
)
from gateway.worker.transaction import DeliveryTransaction

Per = str | int | Sequence[str | int]
"""The value or values that identify the thing for which a call is made once."""


class NotGiven:
    """Marker for an omitted `per`, as opposed to a `per` that is None."""


NOT_GIVEN: Final = NotGiven()

if TYPE_CHECKING:  # importing it takes 0.2 s and 30 MB: only if a handler uses it
    from stripe import StripeClient


class Database:
    """The delivery's transaction. It commits with the delivery's completion, or not at all.

    It is opened at first use, and closed when the delivery is settled. It runs one statement at a
    time: concurrent calls wait for each other.
    """

    def __init__(self, transaction: DeliveryTransaction) -> None:
        self._transaction = transaction

    async def execute(self, query: str, *args: Any) -> str:
        """Run a statement; return its status, such as `UPDATE 1`."""
        return cast(str, await self._transaction.send("execute", query, *args))

    async def executemany(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once per row of arguments."""
        await self._transaction.send("executemany", query, rows)

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """Return all rows."""
        return cast(list[asyncpg.Record], await self._transaction.send("fetch", query, *args))

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        """Return the first row, or None."""
        return cast(asyncpg.Record | None, await self._transaction.send("fetchrow", query, *args))

    async def fetchval(self, query: str, *args: Any, column: int = 0) -> Any:
        """Return one value of the first row, or None."""
        return await self._transaction.send("fetchval", query, *args, column=column)

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Begin a savepoint. If the block raises, only its statements are rolled back.

        Use it as `async with ctx.db.transaction():`.
        """
        return self._transaction.savepoint()


class Context:
    """The second argument of every handler."""

    def __init__(self, *, lease: Lease, subscription: Subscription, worker: WorkerContext) -> None:
        self._lease = lease
        self._worker = worker
        around = partial(worker.hooks.around_statement, lease)
        self._transaction = DeliveryTransaction(worker.work, subscription.timeout, around)
        self.db = Database(self._transaction)
        """The delivery's transaction in the gateway's database, with asyncpg's methods."""
        self.http: httpx.AsyncClient = worker.http
        """A shared httpx client."""
        self.attempt: int = lease.attempt
        """The number of the attempt: 1 on the first run, and on the first run after a replay."""
        self.log: structlog.stdlib.BoundLogger = worker.codec.logger(lease.event).bind(
            route=lease.event.route,
            event_id=lease.event.id,
            delivery_id=lease.delivery_id,
            handler=lease.handler,
            attempt=lease.attempt,
        )
        """A logger that binds route, event id and delivery id, and redacts values."""
        # Not a bound method: in a reference cycle the body would stay until a garbage collection.
        of_delivery = lease.event.route, lease.event.id, lease.handler
        self._make_key = partial(make_scoped_key, *of_delivery)
        self._make_stripe_key = partial(make_stripe_key, *of_delivery)
        make_job_key = partial(make_key, *of_delivery)
        self._outbox = Outbox(worker, make_job_key)

    async def upsert(
        self,
        table: str,
        *,
        key: Mapping[str, Any],
        values: Mapping[str, Any],
        version: Any = UNVERSIONED,
    ) -> bool:
        """Insert the row with this key, or update it to these values.

        With `version`, which is stored in the column `version`, older state never overwrites newer.
        The columns of the key need a unique index. Return whether the row was written.
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
        per: Per | NotGiven = NOT_GIVEN,
        **kwargs: Any,
    ) -> Any:
        """Call `func(*args, **kwargs)` once per delivery, and return its result as JSON.

        A rerun gets the recorded result. With `per`, a value or several, the function is called
        once for all events with the same `per`: `per=session["id"]`.

        The call is recorded before it is made. If it fails, it is either known not to be done (a
        refused connection, `gateway.NotSent`, a response such as 401, 404 or 422, an exception in
        `not_done`), and the next run calls again; or its outcome is unknown (a timeout, a 500, a
        killed worker). In that case `unknown="retry"` calls again: pass `ctx.idempotency_key(name)`
        to the service. `unknown="skip"` does not call again and returns None, and `gateway effects`
        lists the effect until an operator resolves it. docs/handlers.md has the whole table.
        """
        if not callable(func):
            raise TypeError(
                f"ctx.once({name!r}) needs a function and its arguments, found {func!r:.80}: "
                "it decides itself whether to call it"
            )
        key = None
        if not isinstance(per, NotGiven):
            key = _read_key("once", name, per)
            await self._check_not_redacted(name, per)
        call = partial(func, *args, **kwargs)
        return await self._effects.once(name, call, unknown, not_done, key)

    async def _check_not_redacted(self, name: str, per: Per) -> None:
        texts = [str(value) for value in (per if isinstance(per, list | tuple) else (per,))]
        hide = await self._worker.codec.hiding(self._lease.event)
        if any(REDACTED in text or hide(text) != text for text in texts):
            raise ValueError(
                f"ctx.once({name!r}, per=...) holds a field that the route redacts: keys are stored"
                " and shown; use a value that is not redacted"
            )

    async def publish(
        self, queue: str, payload: Any, key: str | None = None, type: str | None = None
    ) -> bool:
        """Publish a job to a queue (a route with `provider: publish`).

        The job is committed in the transaction of this handler, or not at all. Calls with the same
        key publish one job, for as long as the queue's keys are kept. Without a key, there is one
        job per call and delivery. The job's type is `type`, or else the queue's name. Return
        whether it is a new job.
        """
        job = self._outbox.make(queue, payload, key, type)
        row = await self._transaction.run_own(QUERIES["publish"], *job_arguments(job))
        if row is None or not row["is_new"]:
            if row is not None and row["differs"]:
                self.log.warning("published_with_another_payload", queue=queue, key=job.envelope.id)
            return False
        self._outbox.note(job, row["delivery_ids"])
        return True

    def idempotency_key(self, name: str = "", *, per: Per | NotGiven = NOT_GIVEN) -> str:
        """Return an idempotency key that is equal in all runs of this delivery, and in no other.

        That includes retries and replays. With `per`, it is equal for all events of this handler
        with that value (or values). Use it for APIs that deduplicate by themselves, such as
        Stripe's `Idempotency-Key`. In a function that `ctx.once(..., per=...)` calls, `per`
        defaults to the same value.
        """
        if isinstance(per, NotGiven):
            return self._make_key(name)
        return self._make_key(name, _read_key("idempotency_key", name, per))

    @cached_property
    def resources(self) -> Resources:
        """The resources that the `@resource` functions of the handler modules opened, by name."""
        return Resources(self._worker.resources)

    @cached_property
    def stripe(self) -> "StripeClient":
        """A Stripe client with the route's `api_key`. Use its methods that end in `_async`.

        Its writes have an idempotency key that is equal in all runs of this delivery.
        """
        from gateway.worker.stripe_client import make_stripe_client  # imports stripe

        route = self._lease.event.route
        if route not in self._worker.api_keys:
            raise RuntimeError(
                f'ctx.stripe needs "api_key: env:..." on route {route!r} in routes.yaml'
            )
        api_key = self._worker.api_keys[route].reveal().decode()
        return make_stripe_client(api_key, self._worker.http, self._make_stripe_key)

    @cached_property
    def _effects(self) -> Effects:
        return Effects(self._worker.ledger, self._lease, self._worker.codec.encryption, self.log)


def _read_key(method: str, name: str, per: Per) -> str:
    values = per if isinstance(per, list | tuple) else (per,)
    if None in values:
        raise Reject(f"ctx.{method}({name!r}, per=...): the event has no value for it: found None")
    try:
        return key_of(per)
    except ValueError as error:
        raise ValueError(f"ctx.{method}({name!r}, per=...): {error}") from None


def transaction_of(context: Context) -> DeliveryTransaction:
    """Return the transaction behind `ctx.db`, for the code that commits or rolls back the run."""
    return context._transaction


def trace_of(context: Context) -> str | None:
    """Return the current `traceparent`, for a forward of the event."""
    return context._worker.hooks.current_trace()


async def mark_effects(context: Context) -> None:
    """List the effects with an unknown outcome for operators, before the delivery completes.

    Any run of the delivery may have begun them. A first run that knows all of its outcomes has
    none.
    """
    lease, effects = context._lease, vars(context).get("_effects")
    if marks_inside(context):
        await context._transaction.mark_effects(lease.delivery_id)
    elif lease.run > 1 or not (effects is None or effects.is_settled):
        await mark_effects_unknown(context._worker.ledger, lease)


def marks_inside(context: Context) -> bool:
    """Return whether effects are marked in the transaction of this run.

    They are if only earlier runs can have begun them. A second connection could wait for ever
    behind a pooler whose connections are all held by handlers. Effects that this run has begun may
    be newer than the snapshot of its transaction, so that only another one can change them.
    """
    is_without_calls = vars(context).get("_effects") is None
    return context._lease.run > 1 and is_without_calls and context._transaction.used


def outbox_of(context: Context) -> Outbox:
    """Return the jobs that the run publishes, for the code that commits the run."""
    return context._outbox
