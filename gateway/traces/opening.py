"""Whether there are traces, and of what."""

from typing import TYPE_CHECKING, Literal

from gateway.errors import ConfigInvalid, Problem

if TYPE_CHECKING:  # opentelemetry, which is an extra
    from gateway.traces.spans import Traces


def open_traces(*, on: bool, process: Literal["serve", "worker"]) -> "Traces | None":
    """None where they are off. Where the spans go is said in the `OTEL_...` variables."""
    if not on:
        return None
    try:
        from gateway.traces.spans import Traces  # 0.2 s, and an extra
    except ImportError as error:
        problem = Problem(
            file="environment",
            key="GATEWAY_TRACES",
            found=f"on, without OpenTelemetry ({error})",
            expected="its packages: pip install 'webhook-gateway-server[traces]'",
        )
        raise ConfigInvalid([problem]) from error
    return Traces.exporting(process)
