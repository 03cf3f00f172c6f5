"""OpenTelemetry spans of a run: its SQL statements and its HTTP requests."""

import re
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx

from gateway.base.model import Lease, Outcome
from gateway.telemetry.spans import HEADER, Calling, Traces, Value, fail
from gateway.worker.hooks import RunReport

TEXT_CHARS: Final = 1_000
VERB: Final = re.compile(r"\s*([a-z]{1,20})\b", re.IGNORECASE)
"""Matches the first word of a statement. In `select'...'` a string constant follows directly, which
must not get into the name of the span."""
STATEMENT: Final = "statement"
POSTGRES: Final = {"db.system.name": "postgresql"}
FAILED: Final = 400
GOOD: Final = frozenset({Outcome.DONE, Outcome.SKIPPED})


class TracedRuns:
    """The hooks that record each run and each of its statements as a span."""

    def __init__(self, traces: Traces, *, without_text: Container[str]) -> None:
        self._traces = traces
        self._without_text = without_text
        """The routes whose statements are recorded without their texts."""

    @contextmanager
    def around_run(self, run: RunReport) -> Iterator[None]:
        lease, subscription = run.lease, run.subscription
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
        with self._traces.running(f"run {subscription.label}", lease.trace, told) as span:
            yield
            if run.settlement is None:
                fail(span, "lease_lost")
                return
            outcome = run.settlement.outcome
            span.set_attribute("gateway.outcome", outcome)
            if outcome not in GOOD:
                fail(span, outcome, run.settlement.error)

    def around_statement(self, lease: Lease, query: str) -> Calling:
        """Record a statement without its arguments."""
        verb = VERB.match(query)
        is_told = lease.event.route not in self._without_text
        told = {"db.query.text": query[:TEXT_CHARS]} if is_told else {}
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
