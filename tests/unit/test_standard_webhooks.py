"""Standard Webhooks: the specification's vector, an independent verifier, keys of a wrong shape."""

import base64
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from gateway.providers.standard_webhooks import KeyMalformed, headers, parse_key, sign

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(bytes(range(32))).decode()
BODY = b'{"test": 2432232314}'
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
SIGNED_AT = 1614265330


def test_the_vector_that_python_node_and_svix_agree_on() -> None:
    signature = sign(ID, SIGNED_AT, BODY, [parse_key(SECRET)])
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("body", [b"", b'{"a":"\xc3\xa9"}', b'{"big":"' + b"x" * 100_000 + b'"}'])
@pytest.mark.parametrize("secret", [SECRET, OTHER])
def test_a_receiver_verifies_what_is_sent_while_keys_change(secret: str, body: bytes) -> None:
    now = int(datetime.now(UTC).timestamp())
    sent = headers("evt_1", now, body, [parse_key(OTHER), parse_key(SECRET)])
    Webhook(secret).verify(body, sent, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body + b" ", sent, json_parse=False)


def test_without_a_key_there_is_no_signature() -> None:
    assert headers(ID, SIGNED_AT, BODY, []) == {
        "webhook-id": ID,
        "webhook-timestamp": str(SIGNED_AT),
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "a key without whsec_"),
        ("", "a key without whsec_"),
        ("whsec_", "a key of 0 bytes"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", "not base64"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2La_aSw", "not base64"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", "not base64"),
        ("whsec_Mf KQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "not base64"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS\u00e9", "not base64"),
        ("whsec_" + base64.b64encode(bytes(23)).decode(), "a key of 23 bytes"),
        ("whsec_" + base64.b64encode(bytes(65)).decode(), "a key of 65 bytes"),
        ("whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "a key without whsec_"),
    ],
)
def test_a_key_of_another_shape_is_refused_and_not_shown(text: str, found: str) -> None:
    with pytest.raises(KeyMalformed) as refused:
        parse_key(text)
    assert found in refused.value.found
    assert "MfKQ9" not in str(refused.value)
