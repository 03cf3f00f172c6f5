"""One trace from the request to what its handlers do, by OpenTelemetry.

Nothing of OpenTelemetry is imported unless `GATEWAY_TRACES` is on, and whoever makes spans holds
None instead of `Traces`: off, it costs a comparison.
"""
