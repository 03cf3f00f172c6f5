"""GitHub's scheme: its published vector, forms, the unsigned headers and hostile payloads."""

import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from urllib.parse import quote_plus, unquote_to_bytes

import pytest

from gateway.base.errors import BadPayload, BadSignature
from gateway.base.model import FORM, Envelope, RepeatPolicy, payload_bytes
from gateway.providers import Incoming
from gateway.providers.github import GITHUB, UNIQUE
from tests.support.octokit import examples

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
# https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
SECRET = b"It's a Secret to Everybody"
BODY = b"Hello, World!"
DIGEST = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
DELIVERY = "72d3162e-cc78-11e3-81ab-4c9367dc0958"


def verify(headers: dict[str, str], body: bytes = BODY) -> int:
    incoming = Incoming(headers, body)
    return GITHUB.verify(incoming, keys=[SECRET], now=NOW, tolerance=None).key


def read(
    payload: object, *, event: str = "issues", delivery: str = DELIVERY, form: bool = False
) -> Envelope:
    headers = {"x-github-event": event, "x-github-delivery": delivery}
    body = json.dumps(payload).encode()
    if form:
        headers["content-type"] = f"{FORM}; charset=utf-8"
        body = b"payload=" + quote_plus(body).encode()
    return GITHUB.read(Incoming(headers, body))


def test_the_published_vector_is_accepted() -> None:
    assert verify({"x-hub-signature-256": f"sha256={DIGEST}"}) == 0


def test_our_signer_makes_the_published_vector() -> None:
    headers = GITHUB.sign(
        BODY, secret=SECRET, id=DELIVERY, type="pull_request.opened", now=NOW
    ).headers
    assert headers["x-hub-signature-256"] == f"sha256={DIGEST}"
    assert headers["x-github-event"] == "pull_request"
    assert headers["x-github-delivery"] == DELIVERY
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"].startswith("GitHub-Hookshot/")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "sha256=",
        DIGEST,
        f"sha256={DIGEST.upper()}",
        f"SHA256={DIGEST}",
        f"sha1={DIGEST}",
        f"sha256={DIGEST} ",
        f" sha256={DIGEST}",
        f"sha256= {DIGEST}",
        f"sha256={DIGEST},sha256={DIGEST}",
        f"sha256=sha256={DIGEST}",
        f"sha256={DIGEST[:-1]}",
        f"sha256={DIGEST}0",
        f"sha256={DIGEST[:-1]}é",
        f"sha256={DIGEST[:-1]}\x00",
        "sha256=" + "0" * 100_000,
    ],
)
def test_a_header_of_any_other_form_is_a_bad_signature(header: str) -> None:
    with pytest.raises(BadSignature):
        verify({"x-hub-signature-256": header})


def test_the_sha_1_signature_never_suffices() -> None:
    sha_1 = hmac.new(SECRET, BODY, hashlib.sha1).hexdigest()
    for headers in (
        {"x-hub-signature": f"sha1={sha_1}"},
        {"x-hub-signature-256": f"sha1={sha_1}"},
        {"x-hub-signature-256": f"sha256={sha_1}"},
        {"x-hub-signature": f"sha256={DIGEST}"},
        {"x-hub-signature": f"sha1={sha_1}", "x-hub-signature-256": "sha256=" + "0" * 64},
    ):
        with pytest.raises(BadSignature):
            verify(headers)


def test_no_time_is_signed_so_that_none_is_checked() -> None:
    for now in (NOW, NOW + timedelta(days=3650), NOW - timedelta(days=3650)):
        headers = {"x-hub-signature-256": f"sha256={DIGEST}"}
        found = GITHUB.verify(
            Incoming(headers, BODY), keys=[SECRET], now=now, tolerance=timedelta(seconds=1)
        )
        assert found == (0, None)


OCTOKIT_SECRET = b"a-long-random-secret"
OCTOKIT_JSON = (
    '{"action":"opened","number":7,"pull_request":{"title":"Zoë’s café – 東京 🚀"},'  # noqa: RUF001
    '"repository":{"full_name":"acme/app","owner":{"login":"acme"}}}'
).encode()


@pytest.mark.parametrize(
    ("content_type", "body", "digest"),
    [
        (
            "application/json",
            OCTOKIT_JSON,
            "b01c9554b89ce7893773f3daaaaca2377648d0c9e07ade18c72a44cb6c3ce83c",
        ),
        (
            FORM,
            b"payload=" + quote_plus(OCTOKIT_JSON).encode(),
            "6a532ce26dc824f425ac53560c6669896d55fa5f5c05326510a951a770567b48",
        ),
    ],
)
def test_octokit_signs_json_and_forms_as_we_do(content_type: str, body: bytes, digest: str) -> None:
    # Made by `sign` of @octokit/webhooks-methods 6.0.0; the form is signed raw.
    headers = {
        "content-type": content_type,
        "x-hub-signature-256": f"sha256={digest}",
        "x-github-event": "pull_request",
        "x-github-delivery": DELIVERY,
    }
    incoming = Incoming(headers, body)
    GITHUB.verify(incoming, keys=[OCTOKIT_SECRET], now=NOW, tolerance=None)
    envelope = GITHUB.read(incoming)
    assert envelope == Envelope(
        id=DELIVERY, type="pull_request.opened", account="acme", object_id="acme/app"
    )


def test_a_form_signed_over_its_payload_field_alone_is_refused() -> None:
    form = b"payload=" + quote_plus(OCTOKIT_JSON).encode()
    headers = GITHUB.sign(OCTOKIT_JSON, secret=SECRET, id=DELIVERY, type="push", now=NOW).headers
    with pytest.raises(BadSignature):
        verify({**headers, "content-type": FORM}, form)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"payload",
        b"payload=",
        b"payload=&a=1",
        b"a=1",
        b"payload={}&payload={}",
        b"payload=%ff",
        b"payload=%zz",
        b"payload=%7B",
        b"payload=%00",
        b"payload=[]",
        b"payload=1",
        b"payload=\xff",
        b"payload={}&&",
        b"&".join([b"a=1"] * 65 + [b"payload={}"]),
        b"Payload={}",
        b"payload=%22%ED%A0%80%22",
        b"payload=%7B%22action%22:%22%5Cud800%22%7D",
        b"payload=" + b"%5B" * 5000,
        b"=" * 5000,
        b"payload={}&" + b"x" * 5000,
    ],
)
def test_a_form_without_one_json_object_is_a_bad_payload(body: bytes) -> None:
    headers = GITHUB.sign(body, secret=SECRET, id=DELIVERY, type="push", now=NOW).headers
    headers["content-type"] = FORM
    assert verify(headers, body) == 0
    with pytest.raises(BadPayload) as caught:
        GITHUB.read(Incoming(headers, body))
    assert len(caught.value.reason) < 200


@pytest.mark.parametrize("content_type", [FORM.upper(), f" {FORM} ; charset=UTF-8", FORM])
def test_the_content_type_of_a_form_is_read_leniently(content_type: str) -> None:
    headers = {
        "content-type": content_type,
        "x-github-event": "push",
        "x-github-delivery": DELIVERY,
    }
    assert GITHUB.read(Incoming(headers, b"payload=%7B%7D&other=1")).type == "push"


def test_a_form_may_hold_what_json_may() -> None:
    payload = {"action": "opened", "title": "a+b & c=d; 100 % é \u2028"}
    assert read(payload, form=True).type == "issues.opened"


def test_the_type_is_the_event_and_its_action() -> None:
    assert read({"action": "opened"}).type == "issues.opened"
    assert read({}, event="push").type == "push"
    assert read({"action": None}, event="push").type == "push"
    assert read({"action": "Deploy now 🚀"}, event="repository_dispatch").type == (
        "repository_dispatch.Deploy now 🚀"
    )


def test_github_says_nothing_of_time_or_mode() -> None:
    envelope = read({"action": "opened"})
    assert envelope.id == DELIVERY
    assert envelope.livemode is None
    assert envelope.occurred_at is None


@pytest.mark.parametrize("action", ["", 7, True, [], {}, "a\x00", "a\nb", "\x1b[2J", "a" * 249])
def test_an_action_that_is_not_short_plain_text_is_a_bad_payload(action: object) -> None:
    with pytest.raises(BadPayload):
        read({"action": action})


def test_a_type_of_the_greatest_length_is_accepted() -> None:
    assert len(read({"action": "a" * 248}).type) == 255


@pytest.mark.parametrize("delivery", ["1", "not-a-guid", "x" * 255, DELIVERY.upper()])
def test_the_delivery_id_is_opaque(delivery: str) -> None:
    assert read({}, delivery=delivery).id == delivery


@pytest.mark.parametrize("delivery", ["", "x" * 256, "a b", "a\x00", "a\n", "é", "\x7f", "\xff"])
def test_a_delivery_id_that_is_not_visible_ascii_is_a_bad_payload(delivery: str) -> None:
    with pytest.raises(BadPayload, match="x-github-delivery"):
        read({}, delivery=delivery)


@pytest.mark.parametrize(
    "event", ["", "Push", "push ", "push\n", "a.b", "pull-request", "x" * 101, "é", "\x00", "²"]
)
def test_an_event_name_of_another_form_is_a_bad_payload(event: str) -> None:
    with pytest.raises(BadPayload, match="x-github-event"):
        read({}, event=event)


@pytest.mark.parametrize("missing", ["x-github-delivery", "x-github-event"])
def test_a_missing_delivery_header_is_a_bad_payload(missing: str) -> None:
    headers = {"x-github-delivery": DELIVERY, "x-github-event": "push"}
    del headers[missing]
    with pytest.raises(BadPayload, match=f"{missing}: found nothing"):
        GITHUB.read(Incoming(headers, b"{}"))


@pytest.mark.parametrize(
    ("payload", "account"),
    [
        ({}, None),
        ({"organization": {"login": "acme"}, "repository": {"owner": {"login": "mira"}}}, "acme"),
        ({"repository": {"owner": {"login": "mira"}}}, "mira"),
        ({"installation": {"account": {"login": "acme"}}}, "acme"),
        ({"organization": None, "repository": {"owner": {"login": "mira"}}}, "mira"),
        ({"organization": {"login": 7}, "repository": {"owner": {"login": "mira"}}}, "mira"),
        ({"organization": "acme"}, None),
        ({"organization": {"login": ""}}, None),
        ({"organization": {"login": "a\x00"}}, None),
        ({"organization": {"login": "a" * 256}}, None),
        ({"organization": ["login"], "repository": [], "installation": 1}, None),
        ({"repository": {"owner": {"name": "mira"}}}, None),
        ({"installation": {"id": 1}}, None),
    ],
)
def test_the_account_is_the_login_to_whom_the_event_belongs(
    payload: dict[str, object], account: str | None
) -> None:
    assert read(payload).account == account


def test_bodies_that_can_repeat_are_flagged_and_others_follow_the_route() -> None:
    for type in ("ping", "repository_dispatch.deploy", "membership.added", "not_yet_known.x"):
        assert GITHUB.repeat_policy(type, RepeatPolicy.REFUSE) is RepeatPolicy.FLAG
    assert GITHUB.repeat_policy("push", RepeatPolicy.REFUSE) is RepeatPolicy.REFUSE
    assert GITHUB.repeat_policy("push", RepeatPolicy.FLAG) is RepeatPolicy.FLAG


@pytest.mark.parametrize(
    "type", ["projects_v2_item.edited", "project_column.moved", "package.published"]
)
def test_bodies_that_do_not_say_what_has_changed_are_flagged(type: str) -> None:
    """Their `updated_at` has a resolution of a second, or is not of what changed."""
    assert GITHUB.repeat_policy(type, RepeatPolicy.REFUSE) is RepeatPolicy.FLAG


def test_no_type_of_the_new_request_makes_the_policy_more_lenient() -> None:
    refuse = RepeatPolicy.REFUSE
    for type in ("push", "membership", "ping", "issues.opened"):
        assert GITHUB.repeat_policy("push", refuse, type=type) is refuse
        if type != "membership":
            assert GITHUB.repeat_policy("membership", refuse, type=type) is refuse


def test_the_field_for_which_a_body_cannot_repeat_is_in_every_example() -> None:
    for example in examples():
        if example.type in UNIQUE:
            value: object = example.payload
            for key in UNIQUE[example.type].split("."):
                assert isinstance(value, dict), (example.type, key)
                value = value.get(key)
            assert isinstance(value, str | int), (example.type, UNIQUE[example.type])


def test_every_event_of_the_table_is_one_that_github_documents() -> None:
    known = {example.event for example in examples()} | {"secret_scanning_alert"}
    assert {type.partition(".")[0] for type in UNIQUE} <= known


def test_what_github_does_is_written_down() -> None:
    assert GITHUB.redelivery == timedelta(days=3)
    assert GITHUB.tolerance is None
    assert GITHUB.max_body == 26_214_400
    assert not GITHUB.retries


@pytest.mark.parametrize("text", ["plain", "äöü€ 😀", "%41%", "a+b c", "{}" * 50])
def test_both_ways_to_decode_a_form_agree(text: str) -> None:
    everything = "".join(f"%{byte:02x}" for byte in text.encode())
    for encoded in (quote_plus(text), everything, quote_plus(text) + everything):
        body = b"payload=" + encoded.encode()
        assert payload_bytes({"content-type": FORM}, body) == unquote_to_bytes(
            encoded.replace("+", " ")
        )
