"""Open the traces of a process: one OpenTelemetry trace from a request to the work of its handlers.

OpenTelemetry is imported only if `GATEWAY_TRACES` is on. Otherwise callers hold None instead of
`Traces`, so disabled traces cost only a comparison.
"""

import os
from typing import TYPE_CHECKING, Final, Literal

from gateway.base.errors import ConfigInvalid, Problem

if TYPE_CHECKING:  # opentelemetry, which is an extra
    from gateway.telemetry.spans import Traces

HEADERS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")


def open_traces(*, on: bool, process: Literal["serve", "worker"]) -> "Traces | None":
    """Return the traces, or None if they are off.

    The `OTEL_...` variables configure the exporter.
    """
    if not on:
        return None
    try:
        return _open(process)
    except ImportError as error:
        found = f"on, without OpenTelemetry ({error})"
        expected = "its packages: pip install 'webhook-gateway-server[traces]'"
        raise ConfigInvalid([_problem("GATEWAY_TRACES", found, expected)]) from error
    except ValueError as error:
        told = _problem("OTEL_...", str(error), "what OpenTelemetry takes")
        raise ConfigInvalid([told]) from error


def _open(process: str) -> "Traces":
    from gateway.telemetry.spans import (  # 0.2 s, an extra, reads OTEL_...
        Traces,
        can_read_headers,
    )

    for key in HEADERS:
        if not can_read_headers(os.environ.get(key, "")):
            raise ConfigInvalid([_problem(key, "what is no list", "name=value,name=value")])
    return Traces.exporting(process)


def _problem(key: str, found: str, expected: str) -> Problem:
    return Problem(file="environment", key=key, found=found, expected=expected)
