"""The HTTP requests of handlers, recorded and never sent."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import httpx
import orjson

from gateway.providers.samples import make_sample
from gateway.testing.guard import calling_place

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


def find_object(request: httpx.Request, payload: Any) -> dict[str, Any] | None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request that a handler made."""

    method: str
    url: str
    headers: Mapping[str, str]
    """The request headers, with names in lower case."""
    body: bytes
    place: str | None
    """`file:line` of the user's code that made it.

    The file is relative to the project's directory.
    """

    @property
    def json(self) -> Any:
        """The body decoded from JSON."""
        return orjson.loads(self.body)

    @property
    def form(self) -> dict[str, str]:
        """The body decoded from form fields, which is the format of requests to Stripe's API."""
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))

    @property
    def idempotency_key(self) -> str | None:
        return self.headers.get("idempotency-key")


@dataclass(slots=True, kw_only=True)
class _Rule:
    method: str
    url_glob: str
    answer: httpx.Response | BaseException | type[BaseException]
    times_left: int | None

    def fits(self, call: Call) -> bool:
        if self.times_left == 0 or self.method not in (call.method, "*"):
            return False
        return call.url == self.url_glob or fnmatchcase(call.url, self.url_glob)


class Outgoing(httpx.AsyncBaseTransport):
    """HTTP transport of `ctx.http`: records each request, responds with 200, and sends nothing.

    By default Stripe responds with an object, and other servers with `{}`. See `answer` and `fail`.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.calls: list[Call] = []
        self.on_call: Callable[[], Awaitable[None]] | None = None
        """Called for each request before it is answered."""
        self.payload: Any = None
        """The payload of the event that is being handled.

        Simulated Stripe responses use its objects.
        """
        self._root = root or Path.cwd()
        self._rules: list[_Rule] = []
        self._stripe = StripeObjects(datetime.now(UTC))

    def answer(
        self,
        method: str,
        url_glob: str,
        *,
        status: int = 200,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        times: int | None = None,
    ) -> None:
        """Set the response to matching requests, for all further ones or the next `times`.

        If several rules match, the last one added wins. `method` may be `*`; in `url_glob`, `*`
        matches any text.
        """
        response = httpx.Response(status, json={} if json is None else json, headers=headers)
        self._add(method, url_glob, response, times)

    def fail(
        self,
        method: str,
        url_glob: str,
        exception: BaseException | type[BaseException],
        *,
        times: int | None = None,
    ) -> None:
        """Raise an exception, such as `httpx.ConnectError("refused")`, for matching requests."""
        self._add(method, url_glob, exception, times)

    def client(self, **options: Any) -> httpx.AsyncClient:
        """Return a client that sends all its requests here.

        `options` are httpx's, such as `base_url`.
        """
        return httpx.AsyncClient(transport=self, **options)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call = Call(
            method=request.method,
            url=str(request.url),
            headers=dict(request.headers),
            body=await request.aread(),
            place=calling_place(self._root),
        )
        self.calls.append(call)
        if self.on_call is not None:
            await self.on_call()
        return self._respond(call, request)

    def _add(
        self,
        method: str,
        url_glob: str,
        answer: httpx.Response | BaseException | type[BaseException],
        times: int | None,
    ) -> None:
        self._rules.append(
            _Rule(method=method.upper(), url_glob=url_glob, answer=answer, times_left=times)
        )

    def _respond(self, call: Call, request: httpx.Request) -> httpx.Response:
        rule = next((rule for rule in reversed(self._rules) if rule.fits(call)), None)
        if rule is None:
            return httpx.Response(200, json=self._default(request))
        if rule.times_left is not None:
            rule.times_left -= 1
        if not isinstance(rule.answer, httpx.Response):
            raise rule.answer
        given = rule.answer
        return httpx.Response(given.status_code, headers=given.headers, content=given.content)

    def _default(self, request: httpx.Request) -> Any:
        if request.url.host != STRIPE:
            return {}
        return find_object(request, self.payload) or self._stripe.answer(request)
