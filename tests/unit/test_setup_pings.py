"""The requests that senders send first: a signed one without an id or a type is taken."""

import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.base.errors import BadSignature
from gateway.base.model import RepeatPolicy
from gateway.providers import PROVIDERS, Incoming, Provider
from gateway.providers.entries import entry_names, read_scheme
from gateway.providers.schemes.coverage import covers_choice
from gateway.providers.schemes.sections import DIGEST, UUID, SignedSection
from gateway.providers.schemes.template import Template

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
URL = "https://gateway.example.com/webhooks/x"
NAMES = sorted(entry_names())
DIGEST_CHARS = 64


def is_last_resort(choice: Template) -> bool:
    return str(choice) in (DIGEST, UUID) or not choice.places


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_has_a_last_resort_for_its_id_and_type(name: str) -> None:
    section = read_scheme(name)
    assert is_last_resort(section.type[-1])
    # An id that is signed is there, or the request is not verified.
    is_signed = isinstance(section, SignedSection) and (
        section.signed.has("id")
        or (not section.signed.has("body") and covers_choice(section, section.id[-1]))
    )
    assert is_last_resort(section.id[-1]) or is_signed


def receive(provider: Provider, body: bytes, secret: str, **headers: str) -> Incoming:
    """A body, signed as the sender does, and verified."""
    signed = provider.sign(body, secret=secret.encode(), id="ping_1", type="ping", now=NOW, url=URL)
    incoming = Incoming({**signed.headers, **headers}, signed.body, "POST", signed.url)
    key = provider.read_key(secret.encode())
    provider.verify(incoming, keys=[key], now=NOW, tolerance=provider.tolerance)
    return incoming


# Adyen signs fields of each item, and makes the id of them: there is no ping without them.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "adyen"])
def test_a_signed_ping_without_id_and_type_is_taken(name: str) -> None:
    provider = PROVIDERS[name]
    incoming = receive(provider, b"{}", provider.make_secret())
    section = read_scheme(name)
    is_id_signed = isinstance(section, SignedSection) and section.signed.has("id")
    if not is_id_signed and name != "twilio":
        incoming = incoming._replace(
            headers={k: v for k, v in incoming.headers.items() if k == "content-type"}
        )
    if provider.greet is not None and provider.greet(incoming, key=None) is not None:
        return
    for item in [incoming] if provider.split is None else provider.split(incoming):
        envelope = provider.read(item)
        assert envelope.id
        assert envelope.type
        if not is_id_signed and name not in ("twilio", "mercado-pago"):
            assert len(envelope.id) == DIGEST_CHARS or str(section.id[-1]) == UUID


def test_the_ping_of_intercom_has_no_id() -> None:
    provider = PROVIDERS["intercom"]
    ping = {"type": "notification_event", "app_id": "a1", "id": None, "topic": "ping"}
    envelope = provider.read(receive(provider, json.dumps(ping).encode(), "secret"))
    assert (len(envelope.id), envelope.type) == (DIGEST_CHARS, "ping")


LINEAR_RETRIES = [
    timedelta(minutes=1),
    timedelta(hours=1, minutes=1),
    timedelta(hours=7, minutes=2),
]


@pytest.mark.parametrize("later", LINEAR_RETRIES)
def test_a_retry_of_linear_is_the_same_event(later: timedelta) -> None:
    """A retry repeats the body with the time of the first try."""
    provider = PROVIDERS["linear"]
    body = json.dumps(
        {"type": "Issue", "action": "update", "webhookTimestamp": int(NOW.timestamp() * 1000)}
    ).encode()
    incoming = receive(provider, body, "secret", **{"linear-delivery": "first"})
    again = incoming._replace(headers={**incoming.headers, "linear-delivery": "second"})
    provider.verify(again, keys=[b"secret"], now=NOW + later, tolerance=provider.tolerance)
    assert provider.read(again).id == provider.read(incoming).id


def test_stock_that_goes_back_and_forth_is_three_events_of_webflow() -> None:
    provider = PROVIDERS["webflow"]
    ids = set()
    for seconds, quantity in enumerate((5, 4, 5)):
        payload = {"id": "item", "quantity": quantity, "inventoryType": "finite"}
        body = json.dumps({"triggerType": "ecomm_inventory_changed", "payload": payload}).encode()
        signed = provider.sign(
            body, secret=b"s", id="", type="x", now=NOW + timedelta(seconds=seconds)
        )
        ids.add(provider.read(Incoming(signed.headers, body)).id)
    assert len(ids) == 3


def mercado_pago(moment: str, body: dict[str, Any]) -> Incoming:
    signed = f"id:ORD01;request-id:req-1;ts:{moment};".encode()
    headers = {
        "x-request-id": "req-1",
        "x-signature": f"ts={moment},v1={hmac.digest(b'secret', signed, 'sha256').hex()}",
    }
    return Incoming(headers, json.dumps(body).encode(), "POST", URL + "?data.id=ORD01&type=order")


@pytest.mark.parametrize("unit", [1, 1000])
def test_the_time_of_mercado_pago_is_in_seconds_or_milliseconds(unit: int) -> None:
    provider = PROVIDERS["mercado-pago"]
    body = {"action": "order.processed", "type": "order", "data": {"id": "ORD01"}}
    incoming = mercado_pago(str(int(NOW.timestamp()) * unit), body)
    provider.verify(incoming, keys=[b"secret"], now=NOW, tolerance=provider.tolerance)
    envelope = provider.read(incoming)
    assert (envelope.id, envelope.type) == ("req-1", "order.processed")


def mailgun(**signature: str) -> Incoming:
    said = {"timestamp": str(int(NOW.timestamp())), "token": "t" * 50, **signature}
    event = {"id": "CPgfbmQM", "event": "delivered", "timestamp": NOW.timestamp() + 0.5}
    return Incoming({}, json.dumps({"signature": said, "event-data": event}).encode())


def sign_mailgun(key: bytes) -> str:
    signed = str(int(NOW.timestamp())) + "t" * 50
    return hmac.digest(key, signed.encode(), "sha256").hex()


def test_an_event_of_a_mailgun_subaccount_is_verified_by_either_key() -> None:
    provider = PROVIDERS["mailgun"]
    incoming = mailgun(
        signature=sign_mailgun(b"child"), **{"parent-signature": sign_mailgun(b"parent")}
    )
    for key in (b"child", b"parent"):
        provider.verify(incoming, keys=[key], now=NOW, tolerance=provider.tolerance)
    with pytest.raises(BadSignature):
        provider.verify(incoming, keys=[b"other"], now=NOW, tolerance=provider.tolerance)
    assert provider.read(incoming).id == "delivered.CPgfbmQM"
    occurred_at = provider.read(incoming).occurred_at
    assert occurred_at == NOW + timedelta(seconds=0.5)


def test_one_token_of_mailgun_is_one_proof_whichever_signature_is_left_of_it() -> None:
    """Who takes away one of the two signatures must not get a second event for the same token."""
    provider = PROVIDERS["mailgun"]
    assert provider.proof is not None
    child, parent = sign_mailgun(b"child"), sign_mailgun(b"parent")
    both = mailgun(signature=child, **{"parent-signature": parent})
    proofs = {provider.proof(both), provider.proof(mailgun(signature=child))}
    proofs.add(provider.proof(mailgun(**{"parent-signature": parent})))
    assert len(proofs) == 1
    moved = mailgun(**{"parent-signature": parent, "token": "u" * 50})
    with pytest.raises(BadSignature):
        provider.verify(moved, keys=[b"parent"], now=NOW, tolerance=provider.tolerance)


@pytest.mark.parametrize(
    ("name", "hours", "body"),
    [
        ("calendly", 24, {"event": "invitee.created", "payload": {"name": "Ada"}}),
        ("mux", 24, {"type": "video.asset.ready", "id": "3a56ac3d"}),
        ("tiktok", 72, {"event": "video.publish.completed", "create_time": 1795003200}),
    ],
)
def test_a_last_retry_with_the_time_of_the_first_try_is_the_same_event(
    name: str, hours: int, body: dict[str, Any]
) -> None:
    """None of them says whether a retry is signed anew."""
    provider = PROVIDERS[name]
    assert provider.retries
    incoming = receive(provider, json.dumps(body).encode(), "secret")
    last = NOW + timedelta(hours=hours, minutes=30)
    provider.verify(incoming, keys=[b"secret"], now=last, tolerance=provider.tolerance)
    assert provider.redelivery >= timedelta(hours=hours)


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("bitbucket", "repo:push"),
        ("sanity", "update"),
        ("sentry", "issue.resolved"),
        ("sentry", "metric_alert.critical"),
        # Its timestamp is that of the comment, not of the change.
        ("sentry", "comment.updated"),
        ("shopify", "profiles/update"),
        ("woocommerce", "order.deleted"),
    ],
)
def test_types_whose_bodies_honestly_repeat_are_flagged(name: str, type: str) -> None:
    policy = PROVIDERS[name].repeat_policy(type, RepeatPolicy.REFUSE)
    assert policy is RepeatPolicy.FLAG


@pytest.mark.parametrize("type", ["comment.created", "comment.deleted", "installation.created"])
def test_types_of_sentry_whose_bodies_cannot_repeat_are_refused(type: str) -> None:
    policy = PROVIDERS["sentry"].repeat_policy(type, RepeatPolicy.REFUSE)
    assert policy is RepeatPolicy.REFUSE


def test_a_check_of_onfido_that_is_reopened_twice_is_two_events_after_the_window() -> None:
    """Only what is completed or started has a time in the body."""
    provider = PROVIDERS["onfido"]
    reopened = {"resource_type": "check", "action": "check.reopened", "object": {"id": "c1"}}
    envelope = provider.read(
        receive(provider, json.dumps({"payload": reopened}).encode(), "secret")
    )
    assert (envelope.type, envelope.occurred_at) == ("check.reopened", None)
    assert provider.bodies_repeat


@pytest.mark.parametrize("name", ["lithic", "mux", "pagerduty", "viber"])
def test_senders_whose_pages_name_retries_are_known_to_retry(name: str) -> None:
    assert PROVIDERS[name].retries


def test_adyen_tells_live_events_from_test_events() -> None:
    provider = PROVIDERS["adyen-platform"]
    for said, is_live in (("live", True), ("test", False), (None, None)):
        document = {"type": "x", "environment": said, "timestamp": NOW.isoformat()}
        envelope = provider.read(Incoming({}, json.dumps(document).encode()))
        assert (envelope.livemode, envelope.occurred_at) == (is_live, NOW)


def test_parts_that_mercado_pago_leaves_out_are_not_made_up() -> None:
    """Who takes a part away, or adds one, has another text than the one that is signed."""
    provider = PROVIDERS["mercado-pago"]
    incoming = mercado_pago(str(int(NOW.timestamp())), {"id": 1, "type": "order"})
    bare = incoming._replace(url=URL)
    headers = {k: v for k, v in incoming.headers.items() if k != "x-request-id"}
    for changed in (bare, incoming._replace(headers=headers), bare._replace(headers=headers)):
        with pytest.raises(BadSignature):
            provider.verify(changed, keys=[b"secret"], now=NOW, tolerance=provider.tolerance)
    # The same text, cut apart elsewhere: one proof, and so one event.
    cut = incoming._replace(url=URL + "?data.id=ORD01;request-id:req-1", headers=headers)
    provider.verify(cut, keys=[b"secret"], now=NOW, tolerance=provider.tolerance)
    assert provider.proof is not None
    assert provider.proof(cut) == provider.proof(incoming)


def test_a_large_recording_of_elevenlabs_fits() -> None:
    assert PROVIDERS["elevenlabs"].max_body >= 25 * 1024**2
