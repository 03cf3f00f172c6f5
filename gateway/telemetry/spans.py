"""Spans for received requests, statements and handler runs.

A span contains no value of a request, of a payload or of a statement. Of an error it contains only
the text that the ledger keeps, in which secrets are redacted; on encrypted routes that is only the
class.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from datetime import datetime
from importlib.metadata import version
from threading import Thread
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.re import parse_env_headers

DISTRIBUTION: Final = "webhook-gateway-server"
SERVICE: Final = "webhook-gateway"
UNNAMED: Final = "unknown_service"
HEADER: Final = "traceparent"
HEADER_CHARS: Final = 55
"""Length of a header of version 00, the only version.
https://www.w3.org/TR/trace-context/#version-format
"""
MOST_TOLD: Final = 20
"""Maximum number of events of one request that are listed in its span."""
CLOSE_S: Final = 3.0
"""How long the process waits at its end to export the remaining spans."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()

Value = str | int | float | bool
Calling = AbstractContextManager[Span]


class Traces:
    """Create the spans of one process."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("gateway", version(DISTRIBUTION))

    @classmethod
    def exporting(cls, process: str) -> "Traces":
        """Return traces that a thread exports to a collector, by OTLP over HTTP."""
        own = {"service.version": version(DISTRIBUTION), "gateway.process": process}
        resource = Resource.create(own)  # merged with OTEL_RESOURCE_ATTRIBUTES
        if str(resource.attributes["service.name"]).startswith(UNNAMED):
            resource = resource.merge(Resource({"service.name": SERVICE}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    async def close(self) -> None:
        """Export the remaining spans, with a short timeout."""
        loop, flushed = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._provider.force_flush()
            with suppress(RuntimeError):  # the loop did not wait any longer and is closed
                loop.call_soon_threadsafe(flushed.set)

        Thread(target=flush, daemon=True).start()  # never joined
        with suppress(TimeoutError):
            await asyncio.wait_for(flushed.wait(), CLOSE_S)

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        """Close the traces when the context ends."""
        try:
            yield
        finally:
            await self.close()

    def receiving(self, route: str, headers: Mapping[str, str], received_at: datetime) -> Calling:
        """Start a span for a verified request, in the sender's trace if the request names one."""
        return self._span(
            f"receive {route}",
            kind=SpanKind.SERVER,
            parent=_context(headers.get(HEADER)),
            start=received_at,
            attributes={"gateway.route": route},
        )

    def running(self, name: str, trace: str | None, attributes: Mapping[str, Value]) -> Calling:
        """Start a span for an attempt, in the trace in which its event was received."""
        return self._span(
            name, kind=SpanKind.CONSUMER, parent=_context(trace), attributes=attributes
        )

    def calling(self, name: str, attributes: Mapping[str, Value]) -> Calling:
        """Start a span for an external call: a statement or a service."""
        return self._span(name, kind=SpanKind.CLIENT, attributes=attributes)

    def tell(self, span: Span, taken: Sequence[tuple[str, str]]) -> None:
        """Record the id and the outcome of each event of a request."""
        span.set_attribute("gateway.event_ids", [event_id for event_id, _ in taken[:MOST_TOLD]])
        span.set_attribute("gateway.outcomes", [outcome for _, outcome in taken[:MOST_TOLD]])

    def here(self) -> str | None:
        """Return the current trace context as a `traceparent` value."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier.get(HEADER)

    @contextmanager
    def _span(
        self,
        name: str,
        *,
        kind: SpanKind,
        attributes: Mapping[str, Value],
        parent: Context | None = None,
        start: datetime | None = None,
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name,
            context=parent,
            kind=kind,
            attributes=attributes,
            start_time=None if start is None else int(start.timestamp() * 1e9),
            record_exception=False,  # its text may contain confidential data
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                fail(span, type(error).__qualname__)
                raise


def can_read_headers(text: str) -> bool:
    """Return whether the headers for a collector are well-formed.

    One of them is usually a secret, and OpenTelemetry would log headers that it cannot parse, and
    drop them.
    """
    logging.getLogger(parse_env_headers.__module__).setLevel(logging.ERROR)
    given = [one for one in text.split(",") if one.strip()]
    return len(parse_env_headers(text, liberal=True)) == len(given)


def fail(span: Span, kind: str, told: str | None = None) -> None:
    """Mark the span as failed, with the kind of error."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, told))


def _context(trace: str | None) -> Context | None:
    """Return the parent context, or an empty one, which starts a new trace."""
    if trace is None or len(trace) != HEADER_CHARS:
        return Context()
    return _PROPAGATOR.extract({HEADER: trace}, context=Context())
