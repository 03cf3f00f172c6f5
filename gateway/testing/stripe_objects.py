"""Simulated reads from Stripe's API, with objects from the event's payload or from a sample."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import httpx
import orjson

from gateway.providers.samples import make_sample

READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
STRIPE: Final = "api.stripe.com"
STRIPE_KINDS: Final = {
    "accounts": "account",
    "charges": "charge",
    "customers": "customer",
    "disputes": "charge.dispute",
    "invoices": "invoice",
    "payment_intents": "payment_intent",
    "payment_methods": "payment_method",
    "payouts": "payout",
    "prices": "price",
    "products": "product",
    "refunds": "refund",
    "sessions": "checkout.session",
    "setup_intents": "setup_intent",
    "subscriptions": "customer.subscription",
}
"""Maps each collection of Stripe's API to the kind of its objects, as named in event types."""


class StripeObjects:
    """Responses in place of Stripe's API. The same request gets the same response every time."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._made: dict[str, Any] = {}

    def answer(self, request: httpx.Request) -> Any:
        """Return an empty list for a collection, or a sample's object for an id."""
        name = last_part(request.url)
        if name in STRIPE_KINDS and request.method in READS:
            return {"object": "list", "url": request.url.path, "has_more": False, "data": []}
        parts = request.url.path.split("/")
        collection = next((part for part in reversed(parts) if part in STRIPE_KINDS), None)
        if collection is None:
            return {"id": "sample"}
        made_id = f"{collection}_sample" if name in STRIPE_KINDS else name
        if made_id not in self._made:
            type = f"{STRIPE_KINDS[collection]}.updated"
            event = orjson.loads(make_sample("stripe", type, now=self._now).body)
            self._made[made_id] = event["data"]["object"] | {"id": made_id}
        return self._made[made_id]


def told_object(request: httpx.Request, payload: Any) -> dict[str, Any] | None:
    """Return the requested object if the event's payload contains it, or else None."""
    name, address = last_part(request.url), str(request.url.copy_with(query=None))
    for node in _objects(payload):
        if node.get("url") == address or (name and str(node.get("id")) == name):
            return node
    return None


def last_part(url: httpx.URL) -> str:
    """Return the last segment of the URL's path: an id, or the name of a collection."""
    return url.path.rstrip("/").rpartition("/")[2]


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from _objects(child)
