"""Stripe's scheme: its own vectors, the tolerance on both sides, hostile headers and payloads."""

import hashlib
import hmac
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
import stripe

from gateway.base.errors import BadPayload, BadSignature, StaleTimestamp
from gateway.base.model import Envelope
from gateway.providers import Incoming
from gateway.providers.samples import make_sample, sample_types
from gateway.providers.stripe import STRIPE

SECRET = "whsec_test"
SIGNED_AT = 1_700_000_000
BODY = b'{"id":"evt_1","object":"event"}'
# Made by stripe-node 23.1.0: webhooks.generateTestHeaderString with SECRET, SIGNED_AT and BODY.
V1 = "4c15fb2a43f93ef61eaa3e0893866d57cad9cad4223242cfb96f362480cb4021"
HEADER = f"t={SIGNED_AT},v1={V1}"


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def verify(
    header: str,
    body: bytes = BODY,
    *,
    secrets: Sequence[str] = (SECRET,),
    now: float = SIGNED_AT,
    tolerance: timedelta | None = STRIPE.tolerance,
) -> int:
    verified = STRIPE.verify(
        Incoming({"stripe-signature": header}, body),
        keys=[secret.encode() for secret in secrets],
        now=at(now),
        tolerance=tolerance,
    )
    assert verified.signed_at_s == SIGNED_AT
    return verified.key


def sign_text(signed_at: str, body: bytes = BODY) -> str:
    """A header for any text in place of the time, correctly signed."""
    message = signed_at.encode() + b"." + body
    digest = hmac.new(SECRET.encode(), message, hashlib.sha256).hexdigest()
    return f"t={signed_at},v1={digest}"


def read(event: object) -> Envelope:
    return STRIPE.read(Incoming({}, json.dumps(event).encode()))


def snapshot(**changes: object) -> dict[str, object]:
    return {
        "id": "evt_1",
        "object": "event",
        "type": "invoice.paid",
        "created": SIGNED_AT,
        "livemode": False,
        **changes,
    }


def thin(**changes: object) -> dict[str, object]:
    return {
        "id": "evt_2",
        "object": "v2.core.event",
        "type": "v1.billing.meter.error_report_triggered",
        "created": "2024-09-17T06:20:52.246Z",
        "livemode": True,
        "context": "acct_1",
        **changes,
    }


def test_the_header_of_stripe_node_is_accepted() -> None:
    assert verify(HEADER) == 0


@pytest.mark.parametrize(
    ("secret", "v1"),
    [
        ("whsec_test", "d387806d08ea3e04c4606a4106d06cee872456fab89ab5a388a49298c6a8636b"),
        ("whsec_über", "72f7850ce7f244af733b0f4526949cef20515065843ac3e4eb06dd4ea8aafc7a"),
    ],
)
def test_stripe_node_signs_text_beyond_ascii_as_we_do(secret: str, v1: str) -> None:
    # Made by stripe-node 23.1.0 from JSON.stringify of this object.
    description = "Zoë’s café – 東京 🚀"  # noqa: RUF001
    event = {
        "id": "evt_1Vector",
        "object": "event",
        "type": "invoice.paid",
        "created": SIGNED_AT,
        "livemode": False,
        "data": {"object": {"description": description}},
    }
    body = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    assert verify(f"t={SIGNED_AT},v1={v1}", body, secrets=[secret]) == 0


@pytest.mark.parametrize("type", sample_types("stripe"))
def test_headers_of_stripe_python_are_accepted(type: str) -> None:
    body = make_sample("stripe", type, now=at(SIGNED_AT)).body
    header = stripe.WebhookSignature.generate_signature_header(body.decode(), SECRET, SIGNED_AT)
    assert verify(header, body) == 0


@pytest.mark.parametrize("type", sample_types("stripe"))
def test_stripe_python_accepts_our_headers(type: str) -> None:
    now = datetime.now(UTC)
    body = make_sample("stripe", type, now=now).body
    signed = STRIPE.sign(body, secret=SECRET.encode(), id="evt_1", type=type, now=now)
    header = signed.headers["stripe-signature"]
    assert stripe.WebhookSignature.verify_header(body, header, SECRET, tolerance=60)


def test_our_signer_makes_the_header_of_stripe_node() -> None:
    signed = STRIPE.sign(BODY, secret=b"whsec_test", id="evt_1", type="x.y", now=at(SIGNED_AT))
    headers = signed.headers
    assert headers["stripe-signature"] == HEADER
    assert headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("away_s", [-300, -299, 0, 299, 300])
def test_a_time_within_the_tolerance_is_accepted_on_both_sides(away_s: int) -> None:
    assert verify(HEADER, now=SIGNED_AT + away_s) == 0


TEN_YEARS_S = 10 * 365 * 86_400


@pytest.mark.parametrize("away_s", [-TEN_YEARS_S, -301, -300.001, 300.001, 301, TEN_YEARS_S])
def test_a_time_outside_the_tolerance_is_stale_on_both_sides(away_s: float) -> None:
    with pytest.raises(StaleTimestamp):
        verify(HEADER, now=SIGNED_AT + away_s)


def test_the_reason_says_how_stale_it_is() -> None:
    with pytest.raises(StaleTimestamp, match="signed 400 s ago; the tolerance is 300 s"):
        verify(HEADER, now=SIGNED_AT + 400)
    with pytest.raises(StaleTimestamp, match="signed 400 s ahead"):
        verify(HEADER, now=SIGNED_AT - 400)


@pytest.mark.parametrize("signed_at", ["0", "999999999999"])
def test_a_signed_time_at_the_edge_of_its_range_is_stale(signed_at: str) -> None:
    with pytest.raises(StaleTimestamp):
        verify(sign_text(signed_at))


def test_the_signature_is_checked_before_the_time() -> None:
    with pytest.raises(BadSignature):
        verify(HEADER, b"{}", now=SIGNED_AT + 3600)


def test_no_tolerance_means_the_default_and_zero_means_none_at_all() -> None:
    with pytest.raises(StaleTimestamp):
        verify(HEADER, now=SIGNED_AT + 301, tolerance=None)
    with pytest.raises(StaleTimestamp):
        verify(HEADER, now=SIGNED_AT + 1, tolerance=timedelta(0))
    assert verify(HEADER, tolerance=timedelta(0)) == 0


@pytest.mark.parametrize(
    "header",
    [
        f"t={SIGNED_AT},v1={'0' * 64},v1={V1}",
        f"t={SIGNED_AT},v1={V1},v1={'0' * 64}",
        f"v1={V1},t={SIGNED_AT}",
        f"t={SIGNED_AT},v0={'0' * 64},v1={V1},v2=later",
        f"t={SIGNED_AT}" + f",v1={'0' * 64}" * 15 + f",v1={V1}",
    ],
)
def test_any_v1_may_match_and_other_schemes_are_ignored(header: str) -> None:
    assert verify(header, secrets=["whsec_new", SECRET]) == 1


@pytest.mark.parametrize(
    "header",
    [
        "",
        "t",
        ",",
        "t=,v1=",
        V1,
        f"v1={V1}",
        f"t={SIGNED_AT}",
        f"t={SIGNED_AT},v0={V1}",
        f"t=0{SIGNED_AT},v1={V1}",
        f"t={SIGNED_AT},v1a={V1}",
        f"t={SIGNED_AT},V1={V1}",
        f"t={SIGNED_AT},v1={V1.upper()}",
        f"t={SIGNED_AT}, v1={V1}",
        f"t={SIGNED_AT},v1= {V1}",
        f" t={SIGNED_AT},v1={V1}",
        f"t={SIGNED_AT},v1={V1} ",
        f"t={SIGNED_AT};v1={V1}",
        f"t={SIGNED_AT},v1={V1},",
        f"t={SIGNED_AT},t={SIGNED_AT},v1={V1}",
        f"t={SIGNED_AT},v1={V1},t=1",
        f"t={SIGNED_AT},v1={V1[:-1]}é",
        f"t={SIGNED_AT},v1={V1[:-1]}\x00",
        f"t={SIGNED_AT},v1={V1},x=\xff",
        f"t={SIGNED_AT},v1=",
        f"t={SIGNED_AT}" + f",v1={V1}" * 17,
        f"t={SIGNED_AT},v1={V1},x=" + "y" * 5000,
        "t=" + "9" * 5000 + f",v1={V1}",
    ],
)
def test_a_header_of_any_other_form_is_a_bad_signature(header: str) -> None:
    with pytest.raises(BadSignature):
        verify(header)


@pytest.mark.parametrize(
    "signed_at",
    [
        "",
        "+1700000000",
        "-1",
        " 1700000000",
        "1_700_000_000",
        "1700000000.0",
        "1e9",
        "0x10",
        "170000000²",
        "\u0661\u0667",  # int() takes these Arabic-Indic digits
        "9" * 13,
        "nan",
        "17000\x0000000",
    ],
)
def test_a_signed_time_that_is_not_plain_digits_is_a_bad_signature(signed_at: str) -> None:
    with pytest.raises(BadSignature):
        verify(sign_text(signed_at))


def test_the_secret_is_used_as_it_is() -> None:
    for secret in ("whsec_test\n", " whsec_test", "test", "WHSEC_TEST"):
        with pytest.raises(BadSignature):
            verify(HEADER, secrets=[secret])


def test_a_snapshot_event_is_read() -> None:
    assert read(snapshot(account="acct_1")) == Envelope(
        id="evt_1",
        type="invoice.paid",
        account="acct_1",
        livemode=False,
        occurred_at=datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    )
    assert read(snapshot()).account is None
    assert read(snapshot(account=None)).account is None


def test_a_thin_event_is_read() -> None:
    assert read(thin()) == Envelope(
        id="evt_2",
        type="v1.billing.meter.error_report_triggered",
        account="acct_1",
        livemode=True,
        occurred_at=datetime(2024, 9, 17, 6, 20, 52, 246_000, tzinfo=UTC),
    )


@pytest.mark.parametrize("context", [None, "", 7, {"id": "acct_1"}])
def test_a_thin_event_without_context_text_has_no_account(context: object) -> None:
    assert read(thin(context=context)).account is None


def test_a_thin_time_with_another_offset_is_kept_in_utc() -> None:
    occurred_at = read(thin(created="2024-09-17T08:20:52+02:00")).occurred_at
    assert occurred_at == datetime(2024, 9, 17, 6, 20, 52, tzinfo=UTC)
    assert occurred_at.tzinfo is UTC


BAD_TEXTS: list[object] = [
    "",
    None,
    7,
    True,
    [],
    {},
    ["evt_1"],
    "e" * 256,
    "evt\x00",
    "a\nb",
    "\x9b",
]


@pytest.mark.parametrize("value", BAD_TEXTS)
@pytest.mark.parametrize("key", ["id", "type"])
def test_an_id_or_type_that_is_not_short_plain_text_is_a_bad_payload(
    key: str, value: object
) -> None:
    for event in (snapshot(**{key: value}), thin(**{key: value})):
        with pytest.raises(BadPayload, match=f"`{key}`"):
            read(event)


@pytest.mark.parametrize("key", ["id", "type", "object", "created", "livemode"])
def test_a_missing_field_is_a_bad_payload(key: str) -> None:
    for event in (snapshot(), thin()):
        del event[key]
        with pytest.raises(BadPayload, match=f"`{key}`: found nothing; expected"):
            read(event)


def test_an_id_of_the_greatest_length_is_accepted() -> None:
    assert len(read(snapshot(id="e" * 255)).id) == 255


@pytest.mark.parametrize("key", ["id", "type", "account"])
@pytest.mark.parametrize("escape", [rb"\ud800", rb"\udfff", rb"\ud800\ud800", rb"\u0000"])
def test_a_nul_or_a_lone_surrogate_is_a_bad_payload(key: str, escape: bytes) -> None:
    body = json.dumps(snapshot(**{key: "MARK"})).encode().replace(b"MARK", b"x" + escape)
    header = sign_text(str(SIGNED_AT), body)
    assert verify(header, body) == 0
    with pytest.raises(BadPayload):
        STRIPE.read(Incoming({}, body))


@pytest.mark.parametrize("value", ["", 7, False, [], {}, "a" * 256, "acct\x00"])
def test_an_account_that_is_not_text_is_a_bad_payload(value: object) -> None:
    with pytest.raises(BadPayload, match="`account`"):
        read(snapshot(account=value))


def test_a_context_that_cannot_be_stored_is_a_bad_payload() -> None:
    for value in ("acct\x00", "a" * 256):
        with pytest.raises(BadPayload, match="`context`"):
            read(thin(context=value))


@pytest.mark.parametrize("created", [None, True, "1700000000", 1.5, -1, 253_402_128_001, 2**63, []])
def test_a_snapshot_time_that_is_not_unix_seconds_is_a_bad_payload(created: object) -> None:
    with pytest.raises(BadPayload, match="`created`"):
        read(snapshot(created=created))


@pytest.mark.parametrize(
    "created",
    [
        None,
        SIGNED_AT,
        "",
        "yesterday",
        "2024-09-17",
        "2024-09-17T06:20:52",
        "9" * 10000,
        "\x00",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "2024-13-01T00:00:00Z",
    ],
)
def test_a_thin_time_without_offset_or_out_of_range_is_a_bad_payload(created: object) -> None:
    with pytest.raises(BadPayload, match="`created`"):
        read(thin(created=created))


@pytest.mark.parametrize("livemode", [None, 0, 1, "false", []])
def test_a_livemode_that_is_not_a_boolean_is_a_bad_payload(livemode: object) -> None:
    for event in (snapshot(livemode=livemode), thin(livemode=livemode)):
        with pytest.raises(BadPayload, match="`livemode`"):
            read(event)


@pytest.mark.parametrize(("created", "year"), [(0, 1970), (253_402_128_000, 9999)])
def test_a_snapshot_time_at_the_edge_of_its_range_is_read(created: int, year: int) -> None:
    occurred_at = read(snapshot(created=created)).occurred_at
    assert occurred_at is not None
    assert occurred_at.year == year


@pytest.mark.parametrize("kind", [None, "charge", "v2.core.event_notification", 1, {}])
def test_an_unknown_object_is_a_bad_payload(kind: object) -> None:
    with pytest.raises(BadPayload, match=r"`object`: found .*; expected event or v2\.core\.event"):
        read(snapshot(object=kind))


def test_what_stripe_does_is_written_down() -> None:
    assert STRIPE.redelivery == timedelta(days=30)
    assert STRIPE.tolerance == timedelta(minutes=5)
    assert STRIPE.max_body == 1_048_576
    assert STRIPE.retries
    assert STRIPE.repeats is None
