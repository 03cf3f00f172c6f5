"""Refused requests as the doors hand them over."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.receive.rejected.requests import UnexaminedRequest, measure


def turned_away(
    body: bytes | None = b"{}",
    headers: Mapping[str, str] | None = None,
    *,
    route: str = "stripe",
    code: str = "BAD_SIGNATURE",
    reason: str = "no signature matches a secret of the route",
    at: datetime | None = None,
    path: str = "/webhooks/stripe",
    address: str | None = "203.0.113.7",
    **more: Any,
) -> UnexaminedRequest:
    """One of them."""
    raw, _, query = path.partition("?")
    scope = {"method": "POST", "raw_path": raw.encode(), "query_string": query.encode()}
    return UnexaminedRequest(
        route=route,
        at=at or datetime.now(UTC),
        code=code,
        reason=reason,
        scope=scope,
        headers=dict(headers or {}),
        body=body,
        body_bytes=measure(headers or {}, body),
        address=address,
        **more,
    )
