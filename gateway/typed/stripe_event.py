"""Stripe's events as the stripe library types them: a snapshot, or a thin notification."""

from typing import Any, Final, NoReturn, TypeAlias

import stripe
from stripe.events import ALL_EVENT_NOTIFICATIONS

StripeEvent: TypeAlias = stripe.Event | ALL_EVENT_NOTIFICATIONS

THIN: Final = "v2.core.event"


def read_stripe_event(
    body: bytes, object_name: str, client: stripe.StripeClient | None
) -> StripeEvent:
    """The typed event; what it fetches, it fetches through `client`."""
    if client is None:
        client = stripe.StripeClient("none", http_client=_Unbound())
    if object_name == THIN:
        return client.parse_event_notification_without_verification(body)
    return client.construct_event_without_verification(body)


class _Unbound(stripe.HTTPClient):
    """Stands where a client would be, so that a fetch without one says what is missing."""

    name = "unbound"

    async def request_async(self, *_: Any, **__: Any) -> NoReturn:
        _refuse()

    async def request_stream_async(self, *_: Any, **__: Any) -> NoReturn:
        _refuse()

    def request(self, *_: Any, **__: Any) -> NoReturn:
        _refuse()

    def request_stream(self, *_: Any, **__: Any) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise RuntimeError("event.stripe() has no client to fetch with: use event.stripe(ctx.stripe)")
