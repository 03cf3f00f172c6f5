"""A collector of spans: OTLP over HTTP on a real socket, read with the protocol's own messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.support.receiver import Receiver, answer, receiving


@dataclass(frozen=True, slots=True, kw_only=True)
class Spanned:
    """One span, as it was sent."""

    name: str
    process: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    failed: bool
    told: str
    attributes: dict[str, Any]


class Collector:
    """What processes told of, so far."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    @property
    def environ(self) -> dict[str, str]:
        """Sends the spans of a process here, soon."""
        return {
            "GATEWAY_TRACES": "on",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self._receiver.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    @property
    def raw(self) -> bytes:
        return b"".join(request.body for request in self._receiver.requests)

    @property
    def spans(self) -> list[Spanned]:
        """Each once: what was not answered in time is sent again."""
        found = {
            span.span_id: span
            for request in self._receiver.requests
            for span in _read(ExportTraceServiceRequest.FromString(request.body))
        }
        return list(found.values())

    def of(self, trace_id: str) -> dict[str, Spanned]:
        """The spans of one trace, by their names."""
        return {span.name: span for span in self.spans if span.trace_id == trace_id}


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    async with receiving(answer(200)) as receiver:
        yield Collector(receiver)


def _read(request: ExportTraceServiceRequest) -> list[Spanned]:
    return [
        Spanned(
            name=span.name,
            process=resource["gateway.process"],
            service=resource["service.name"],
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            failed=span.status.code == span.status.STATUS_CODE_ERROR,
            told=span.status.message,
            attributes=_attributes(span.attributes),
        )
        for of_process in request.resource_spans
        for resource in [_attributes(of_process.resource.attributes)]
        for of_scope in of_process.scope_spans
        for span in of_scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return None if kind is None else getattr(value, kind)
