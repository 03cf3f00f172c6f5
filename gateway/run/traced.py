"""What a handler does outside itself, as spans of its run: statements, and requests."""

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

import asyncpg
import httpx
from opentelemetry.trace import Span

from gateway.ledger.deliveries import Settlement
from gateway.ledger.sessions import Sessions
from gateway.model import Lease, Outcome
from gateway.run.transaction import DeliveryTransaction
from gateway.traces.spans import HEADER, Calling, Traces, Value, fail

TEXT_CHARS: Final = 1_000
VERB: Final = re.compile(r"\s*([a-z]{1,20})\b", re.IGNORECASE)
"""What a statement begins with. `select'...'` is one, too, and the rest of it is not to be told."""
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
    """`ctx.http`, which carries the trace on. Of a URL it tells only the host: to some services,
    the path is the secret."""

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


def running(traces: Traces, lease: Lease) -> Calling:
    """The run itself: all that the handler does is below it."""
    event = lease.event
    told: dict[str, Value] = {
        "gateway.route": event.route,
        "gateway.event_id": event.id,
        "gateway.event_type": event.type,
        "gateway.handler": lease.handler,
        "gateway.delivery_id": lease.delivery_id,
        "gateway.attempt": lease.attempt,
        "gateway.run": lease.run,
    }
    return traces.running(f"run {lease.handler}", lease.trace, told)


def tell(span: Span, settlement: Settlement | None) -> None:
    """How it ended, in the words of the ledger."""
    if settlement is None:
        fail(span, "lease_lost")
        return
    span.set_attribute("gateway.outcome", settlement.outcome)
    if settlement.outcome not in GOOD:
        fail(span, settlement.outcome, settlement.error)
