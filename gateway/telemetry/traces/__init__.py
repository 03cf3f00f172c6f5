"""One OpenTelemetry trace from a request to the work of its handlers.

OpenTelemetry is imported only if `GATEWAY_TRACES` is on. Otherwise callers hold None instead of
`Traces`, so disabled traces cost only a comparison.
"""
