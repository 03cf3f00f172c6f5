"""OpenTelemetry spans of a run: its SQL statements and its HTTP requests."""

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

import asyncpg
import httpx
from opentelemetry.trace import Span

from gateway.base.model import Lease, Outcome
from gateway.config.registry import Subscription
from gateway.ledger.deliveries import Settlement
from gateway.ledger.sessions import Sessions
from gateway.telemetry.spans import HEADER, Calling, Traces, Value, fail
from gateway.worker.transaction import DeliveryTransaction

TEXT_CHARS: Final = 1_000
VERB: Final = re.compile(r"\s*([a-z]{1,20})\b", re.IGNORECASE)
"""Matches the first word of a statement. In `select'...'` a string constant follows directly, which
must not get into the name of the span."""
STATEMENT: Final = "statement"
POSTGRES: Final = {"db.system.name": "postgresql"}
FAILED: Final = 400
GOOD: Final = frozenset({Outcome.DONE, Outcome.SKIPPED})


class TracedTransaction(DeliveryTransaction):
    """Record each statement as a span, without its arguments."""

    def __init__(
        self, sessions: Sessions, timeout: timedelta, *, traces: Traces, tells_text: bool
    ) -> None:
        super().__init__(sessions, timeout)
        self._traces = traces
        self._tells_text = tells_text

    async def execute(self, query: str, *args: Any) -> str:
        with self._statement(query):
            return await super().execute(query, *args)

    async def executemany(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._statement(query):
            await super().executemany(query, rows)

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        with self._statement(query):
            return await super().fetch(query, *args)

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        with self._statement(query):
            return await super().fetchrow(query, *args)

    async def fetchval(self, query: str, *args: Any, column: int = 0) -> Any:
        with self._statement(query):
            return await super().fetchval(query, *args, column=column)

    async def run_own(self, query: str, *args: Any) -> asyncpg.Record | None:
        with self._statement(query):
            return await super().run_own(query, *args)

    async def complete(self, lease: Lease, *, chain: bool) -> None:
        with self._traces.calling("commit", POSTGRES):
            await super().complete(lease, chain=chain)

    def _statement(self, query: str) -> Calling:
        verb = VERB.match(query)
        told = {"db.query.text": query[:TEXT_CHARS]} if self._tells_text else {}
        return self._traces.calling(verb[1].lower() if verb else STATEMENT, {**POSTGRES, **told})


class TracedClient(httpx.AsyncClient):
    """The `ctx.http` client, which propagates the trace.

    Spans contain only the host of a URL, because the path is a secret with some services.
    """

    def __init__(self, traces: Traces, *, timeout: httpx.Timeout) -> None:
        super().__init__(timeout=timeout)
        self._traces = traces

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        host = request.url.host
        told = {"http.request.method": request.method, "server.address": host}
        with self._traces.calling(f"{request.method} {host}", told) as span:
            if (here := self._traces.here()) is not None:
                request.headers.setdefault(HEADER, here)
            response = await super().send(request, **options)
            span.set_attribute("http.response.status_code", response.status_code)
            if response.status_code >= FAILED:
                fail(span, str(response.status_code))
            return response


def running(traces: Traces, lease: Lease, subscription: Subscription) -> Calling:
    """Return the span of a run, which is the parent of the other spans of the handler."""
    event = lease.event
    told: dict[str, Value] = {
        "gateway.route": subscription.route_label,
        "gateway.event_id": event.id,
        "gateway.event_type": event.type,
        "gateway.handler": subscription.label,
        "gateway.delivery_id": lease.delivery_id,
        "gateway.attempt": lease.attempt,
        "gateway.worker": lease.run,
    }
    return traces.running(f"run {subscription.label}", lease.trace, told)


def tell(span: Span, settlement: Settlement | None) -> None:
    """Record the outcome of a run in its span, by the names that the ledger uses."""
    if settlement is None:
        fail(span, "lease_lost")
        return
    span.set_attribute("gateway.outcome", settlement.outcome)
    if settlement.outcome not in GOOD:
        fail(span, settlement.outcome, settlement.error)
