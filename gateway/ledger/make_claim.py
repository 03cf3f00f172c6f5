"""Builds the claim of a verified request: handlers, ordering keys, and the stored content."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial

from gateway.base.model import Envelope
from gateway.config.registry import Registry
from gateway.config.routes import Route
from gateway.ledger.claims import Claim


def make_claim(
    route: Route,
    registry: Registry,
    envelope: Envelope,
    *,
    headers: Mapping[str, str],
    body: bytes,
    digest: bytes,
    received_at: datetime,
    guard: bytes | None = None,
    reconciled: bool = False,
    verified_by: str | None = None,
    unverified: bool = False,
    clock_s: float | None = None,
) -> Claim:
    """Build the claim. Its digest is that of the received bytes, even if the stored body is
    redacted.

    The codec encrypts it when it is stored.
    """
    handlers = registry.for_event(route.name, envelope.type)
    window = route.dedup_window if envelope.id == digest.hex() else None
    if window is not None:  # the digest alone is no key: an identical body can be another event
        envelope = replace(envelope, id=f"{envelope.id}.{received_at:%Y%m%dT%H%M%S%fZ}")
    credentials = route.provider.credentials
    return Claim(
        route=route.name,
        provider=route.provider.name,
        envelope=route.stored(envelope),
        received_at=received_at,
        digest=digest,
        headers={n: v for n, v in headers.items() if n not in credentials},
        body=route.redacted(headers, body),
        repeats=route.provider.repeat_policy(envelope.type, route.repeats),
        handlers=handlers,
        order_keys=registry.order_keys(route.name, handlers, headers, body),
        guard=guard,
        refuses=partial(route.refuses_repeat, envelope.type),
        reconciled=reconciled,
        verified_by=verified_by,
        unverified=unverified,
        clock_s=clock_s,
        window=window,
    )
