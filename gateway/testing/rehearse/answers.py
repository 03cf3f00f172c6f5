"""What requests are answered with in a rehearsal: what the event tells, or what a sample does."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import httpx
import orjson

from gateway.samples import make_sample

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
"""Of the collections of Stripe's API, of what kind the objects are, as event types name it."""


class Answers:
    """The same question gets the same answer in every run."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._made: dict[str, Any] = {}

    def answer(self, request: httpx.Request, payload: Any) -> Any:
        """`payload` is that of the event."""
        name = request.url.path.rstrip("/").rpartition("/")[2]
        address = str(request.url.copy_with(query=None))
        for node in _objects(payload):
            if node.get("url") == address or (name and str(node.get("id")) == name):
                return node
        if request.url.host == STRIPE:
            return self._stripe(request, name)
        return {} if request.method in READS else {"id": "rehearsal"}

    def _stripe(self, request: httpx.Request, name: str) -> Any:
        if name in STRIPE_KINDS and request.method in READS:
            return {"object": "list", "url": request.url.path, "has_more": False, "data": []}
        parts = request.url.path.split("/")
        collection = next((part for part in reversed(parts) if part in STRIPE_KINDS), None)
        if collection is None:
            return {"id": "rehearsal"}
        made_id = f"{collection}_rehearsal" if name in STRIPE_KINDS else name
        if made_id not in self._made:
            type = f"{STRIPE_KINDS[collection]}.updated"
            event = orjson.loads(make_sample("stripe", type, now=self._now).body)
            self._made[made_id] = event["data"]["object"] | {"id": made_id}
        return self._made[made_id]


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from _objects(child)
