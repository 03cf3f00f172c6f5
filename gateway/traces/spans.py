"""Spans: what was received, what it waited for, what a handler did.

No value of a request, of a payload or of a statement goes into a span, and no text of an error but
what the ledger keeps of it, where secrets are hidden and encrypted routes tell only the class.
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
"""Of version 00, the only one there is. https://www.w3.org/TR/trace-context/#version-format"""
MOST_TOLD: Final = 20
"""Of the events of one request, in its span."""
CLOSE_S: Final = 3.0
"""What is still to be sent when the process ends has so long; a collector that is away, no more."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()

Value = str | int | float | bool
Calling = AbstractContextManager[Span]


class Traces:
    """Makes the spans of one process."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("gateway", version(DISTRIBUTION))

    @classmethod
    def exporting(cls, process: str) -> "Traces":
        """To a collector, by OTLP over HTTP, in a thread of its own."""
        own = {"service.version": version(DISTRIBUTION), "gateway.process": process}
        resource = Resource.create(own)  # with what OTEL_RESOURCE_ATTRIBUTES says
        if str(resource.attributes["service.name"]).startswith(UNNAMED):
            resource = resource.merge(Resource({"service.name": SERVICE}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    async def close(self) -> None:
        """Sends what is left, and waits for it no longer than a moment."""
        loop, flushed = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._provider.force_flush()
            with suppress(RuntimeError):  # the loop has not waited, and is closed
                loop.call_soon_threadsafe(flushed.set)

        Thread(target=flush, daemon=True).start()  # which nobody joins
        with suppress(TimeoutError):
            await asyncio.wait_for(flushed.wait(), CLOSE_S)

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        """Until the process ends."""
        try:
            yield
        finally:
            await self.close()

    def receiving(self, route: str, headers: Mapping[str, str], received_at: datetime) -> Calling:
        """A verified request: of the sender's trace, where it told of one."""
        return self._span(
            f"receive {route}",
            kind=SpanKind.SERVER,
            parent=_context(headers.get(HEADER)),
            start=received_at,
            attributes={"gateway.route": route},
        )

    def running(self, name: str, trace: str | None, attributes: Mapping[str, Value]) -> Calling:
        """A run of a delivery: of the trace in which its event was received."""
        return self._span(
            name, kind=SpanKind.CONSUMER, parent=_context(trace), attributes=attributes
        )

    def calling(self, name: str, attributes: Mapping[str, Value]) -> Calling:
        """Something that is waited for: a statement, a service."""
        return self._span(name, kind=SpanKind.CLIENT, attributes=attributes)

    def tell(self, span: Span, taken: Sequence[tuple[str, str]]) -> None:
        """What became of each event of a request: its id, and the answer."""
        span.set_attribute("gateway.event_ids", [event_id for event_id, _ in taken[:MOST_TOLD]])
        span.set_attribute("gateway.outcomes", [outcome for _, outcome in taken[:MOST_TOLD]])

    def here(self) -> str | None:
        """Where we are, as it is carried on: the value of a `traceparent`."""
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
            record_exception=False,  # its text may hold anything
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                fail(span, type(error).__qualname__)
                raise


def can_read_headers(text: str) -> bool:
    """Whether these are headers for a collector, one of which is usually a secret: OpenTelemetry
    would quote in the log what it cannot read, and leave it out."""
    logging.getLogger(parse_env_headers.__module__).setLevel(logging.ERROR)
    given = [one for one in text.split(",") if one.strip()]
    return len(parse_env_headers(text, liberal=True)) == len(given)


def fail(span: Span, kind: str, told: str | None = None) -> None:
    """Says that it failed, and of what kind that was; once."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, told))


def _context(trace: str | None) -> Context | None:
    """None where there is none, or none that can be read: then a new trace begins."""
    if trace is None or len(trace) != HEADER_CHARS:
        return Context()
    return _PROPAGATOR.extract({HEADER: trace}, context=Context())
