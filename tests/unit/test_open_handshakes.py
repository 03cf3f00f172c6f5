"""Handshakes that no secret of the route proves: one exact shape each, and nothing else."""

import hmac
import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from gateway.base.errors import BadSignature
from gateway.base.model import FORM
from gateway.base.problems import Unexpected
from gateway.providers import PROVIDERS, Incoming
from gateway.providers.provider import Greeting
from gateway.receive.answers import greeted

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
URL = "https://gateway.example.com/webhooks/x"
TEST_KEY = b"test_Am3L1GuOIc4blLUuHqAPxxwkZaJyEk8G"
TEST = {
    "type": "webhook.test",
    "message": "This is a ping test message",
    "created_at": "2026-11-18T12:00:00.577080Z",
}


def greet(name: str, incoming: Incoming) -> Greeting | None:
    provider = PROVIDERS[name]
    assert provider.greet_unverified is not None
    return provider.greet_unverified(incoming, now=NOW)


def mailersend(body: bytes, key: bytes = TEST_KEY) -> Incoming:
    signature = hmac.digest(key, body, "sha256").hex()
    return Incoming({"content-type": "application/json", "signature": signature}, body, "POST", URL)


def dumps(**changed: Any) -> bytes:
    return json.dumps({**TEST, **changed}).encode()


def test_the_test_request_of_mailersend_is_answered() -> None:
    assert greet("mailersend", mailersend(dumps())) == Greeting(200, b"")


ACTIVITY = {"type": "activity.sent", "data": {"id": "1", "email": {"status": "sent"}}}
LARGE = dumps(message="x" * 2000)
DOUBLED = dumps()[:-1] + b', "type": "webhook.test"}'


@pytest.mark.parametrize(
    "body",
    [
        dumps(data={"id": "1"}),
        dumps(extra="x"),
        dumps(type="activity.sent"),
        dumps(message=None),
        dumps(message={"a": 1}),
        dumps(message="<script>alert(1)</script>"),
        json.dumps(ACTIVITY).encode(),
        json.dumps({k: v for k, v in TEST.items() if k != "message"}).encode(),
        json.dumps([TEST]).encode(),
        DOUBLED,
        LARGE,
        b"",
        b"not JSON",
        b'{"type": "webhook.test"',
        b"payload=" + quote(dumps()).encode(),
    ],
)
def test_what_anybody_can_sign_is_good_for_nothing_but_the_test_request(body: bytes) -> None:
    assert greet("mailersend", mailersend(body)) is None
    as_form = mailersend(body)
    as_form = as_form._replace(headers={**as_form.headers, "content-type": FORM})
    assert greet("mailersend", as_form) is None
    with pytest.raises(BadSignature):
        PROVIDERS["mailersend"].verify(mailersend(body), keys=[b"own"], now=NOW, tolerance=None)


def test_the_test_request_of_mailersend_is_signed_with_its_constant_key() -> None:
    assert greet("mailersend", mailersend(dumps(), b"another")) is None
    unsigned = mailersend(dumps())._replace(headers={"content-type": "application/json"})
    assert greet("mailersend", unsigned) is None
    asked = mailersend(dumps())._replace(url=URL + "?type=activity.sent")
    assert greet("mailersend", asked) is None


@pytest.mark.parametrize("secret", [TEST_KEY, TEST_KEY + b"\n"])
def test_the_constant_key_is_no_secret_of_a_route(secret: bytes) -> None:
    with pytest.raises(Unexpected) as refused:
        PROVIDERS["mailersend"].read_key(secret)
    assert TEST_KEY.decode() not in f"{refused.value.found} {refused.value.expected}"


def woocommerce(body: bytes, url: str = URL, **headers: str) -> Incoming:
    return Incoming({"content-type": FORM, **headers}, body, "POST", url)


def test_the_ping_of_woocommerce_is_answered_200() -> None:
    assert greet("woocommerce", woocommerce(b"webhook_id=143")) == Greeting(200, b"")
    charset = {"content-type": f"{FORM}; charset=UTF-8"}
    assert greet("woocommerce", woocommerce(b"webhook_id=143", **charset)) == Greeting(200, b"")


@pytest.mark.parametrize(
    "incoming",
    [
        woocommerce(b"webhook_id=143&a=b"),
        woocommerce(b"webhook_id=143&webhook_id=144"),
        woocommerce(b"webhook_id="),
        woocommerce(b"webhook_id=abc"),
        woocommerce(b"webhook_id=1%0d%0aset-cookie:a=b"),
        woocommerce(b"webhook_id=" + b"1" * 2000),
        woocommerce(b"webhook_id=1&" + b"a" * 100_000),
        woocommerce(b'{"webhook_id": 143}'),
        woocommerce(b'{"id": 727, "status": "completed"}'),
        woocommerce(b""),
        woocommerce(b"webhook_id=143", url=URL + "?webhook_id=143"),
        woocommerce(b"webhook_id=143", url=URL + "?a=b"),
        woocommerce(b"webhook_id=143", **{"content-type": "application/json"}),
        woocommerce(b"webhook_id=143", **{"content-type": "text/plain"}),
        # As the receiver joins a header that came twice.
        woocommerce(b"webhook_id=143", **{"content-type": f"{FORM}, application/json"}),
        # A request with a signature is no ping, whatever it holds.
        woocommerce(b"webhook_id=143", **{"x-wc-webhook-signature": "AAAA"}),
        woocommerce(b"webhook_id=143", **{"x-wc-webhook-signature": ""}),
    ],
)
def test_nothing_else_unsigned_is_answered_for_woocommerce(incoming: Incoming) -> None:
    assert greet("woocommerce", incoming) is None


def slack(body: bytes, url: str = URL, **headers: str) -> Incoming:
    return Incoming({"content-type": FORM, **headers}, body, "POST", url)


def test_the_check_of_slack_for_a_certificate_is_answered_200() -> None:
    """Slack does not sign it."""
    assert greet("slack", slack(b"ssl_check=1&token=xxx")) == Greeting(200, b"")
    turned = b"token=Jhj5dZrVaK7ZwHHjRyZWjbDl&ssl_check=1"
    assert greet("slack", slack(turned)) == Greeting(200, b"")


@pytest.mark.parametrize(
    "incoming",
    [
        slack(b"ssl_check=0&token=xxx"),
        slack(b"ssl_check=true&token=xxx"),
        slack(b"ssl_check=1&ssl_check=1&token=xxx"),
        slack(b"ssl_check=1&token=xxx&command=%2Fdeploy"),
        slack(b"ssl_check=1&token=xxx&payload=%7B%7D"),
        slack(b"token=xxx"),
        slack(b"ssl_check=1&token=xxx", url=f"{URL}?a=b"),
        slack(b'{"ssl_check": "1", "token": "xxx"}', **{"content-type": "application/json"}),
        # A request with a signature is no check, whatever it holds.
        slack(b"ssl_check=1&token=xxx", **{"x-slack-signature": "v0=00"}),
    ],
)
def test_nothing_else_unsigned_is_answered_for_slack(incoming: Incoming) -> None:
    assert greet("slack", incoming) is None


def graph(query: str, body: bytes = b"", **headers: str) -> Incoming:
    said = {"content-type": "text/plain; charset=utf-8", **headers}
    return Incoming(said, body, "POST", f"{URL}?{query}" if query else URL)


TOKEN = "Validation: Testing client application reachability for subscription Request-Id: 8a4b"


def test_the_validation_token_of_graph_is_echoed_as_plain_text() -> None:
    greeting = greet("microsoft-graph", graph(urlencode({"validationToken": TOKEN})))
    assert greeting == Greeting(200, TOKEN.encode(), "text/plain; charset=utf-8")
    answer = greeted(greeting, is_unauthenticated=True)
    assert (b"content-type", b"text/plain; charset=utf-8") in answer.headers
    assert (b"x-content-type-options", b"nosniff") in answer.headers
    assert greet("microsoft-graph", graph(f"validationToken={quote(TOKEN)}")) == greeting
    signs = "a+b/c=&'\"é%"
    greeting = greet("microsoft-graph", graph(urlencode({"validationToken": signs})))
    assert greeting is not None
    assert greeting.body.decode() == signs


@pytest.mark.parametrize(
    "incoming",
    [
        graph(""),
        graph("validationToken="),
        graph(urlencode({"validationToken": "<script>alert(document.cookie)</script>"})),
        graph("validationToken=%3Cimg%20src=x%20onerror=alert(1)%3E"),
        graph("validationToken=a%0d%0aContent-Type:%20text/html"),
        graph("validationToken=a%00b"),
        graph("validationToken=" + "a" * 2049),
        graph("validationToken=a&validationToken=b"),
        graph("validationToken=a&b=c"),
        graph("validationtoken=a"),
        graph("validationToken=a", b'{"value": []}'),
        graph("validationToken=a", b" "),
        graph("validationToken=a", b"a" * 100_000),
        graph("", b"validationToken=a", **{"content-type": FORM}),
        graph("&".join(f"a{n}=b" for n in range(1000))),
    ],
)
def test_nothing_else_is_echoed_for_graph(incoming: Incoming) -> None:
    assert greet("microsoft-graph", incoming) is None


def notifications(*states: Any) -> Incoming:
    items = [{"subscriptionId": "s", "changeType": "updated", "clientState": s} for s in states]
    return Incoming({}, json.dumps({"value": items}).encode(), "POST", URL)


def test_every_item_of_graph_shows_the_client_state() -> None:
    provider = PROVIDERS["microsoft-graph"]
    keys = [provider.read_key(b"first"), provider.read_key(b"second")]

    def verify(incoming: Incoming) -> int:
        return provider.verify(incoming, keys=keys, now=NOW, tolerance=None).key

    assert verify(notifications("first", "second")) == 0
    assert verify(notifications("second")) == 1
    for states in (("first", "other"), ("other", "first"), ("first", None), ("first", ""), ()):
        with pytest.raises(BadSignature):
            verify(notifications(*states))
    item = b'{"clientState": "other", "clientState": "first"}'
    for body in (
        b'{"clientState": "first", "value": [{"changeType": "updated"}]}',
        b'{"value": [%b]}' % item,
        b'{"value": {"clientState": "first"}}',
        b'{"value": [[{"clientState": "first"}]]}',
        b"{}",
        b"",
    ):
        with pytest.raises(BadSignature):
            verify(Incoming({}, body, "POST", URL))


def test_notifications_of_graph_that_are_alike_are_events_of_their_own() -> None:
    """All changes of one drive have the same bytes: none of them may pass for a duplicate."""
    provider = PROVIDERS["microsoft-graph"]
    assert provider.split is not None
    items = provider.split(notifications("first", "first"))
    assert len({provider.read(item).id for item in items}) == 2
    named = Incoming({}, b'{"subscriptionId": "s", "id": "n1", "changeType": "created"}')
    assert {provider.read(named).id for _ in range(2)} == {"s.n1"}


def test_deliveries_of_woocommerce_within_a_second_are_events_of_their_own() -> None:
    """The delivery id is made of the webhook and the second."""
    provider = PROVIDERS["woocommerce"]
    ids = set()
    for order in (1, 2):
        body = json.dumps({"id": order}).encode()
        signed = provider.sign(body, secret=b"s", id="x.y", type="order.updated", now=NOW)
        headers = {**signed.headers, "x-wc-webhook-delivery-id": "0f7d3c8a"}
        ids.add(provider.read(Incoming(headers, body)).id)
    assert len(ids) == 2
