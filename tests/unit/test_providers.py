"""What holds for every provider: recorded requests pass, and no change to a request does."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.base.errors import BadPayload, BadSignature, RequestRejected
from gateway.base.model import Envelope
from gateway.providers import PROVIDERS, Headers, Incoming, Provider
from gateway.providers.samples import make_sample

SAMPLES = Path(__file__).parents[1] / "samples"
NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
SECRET = b"whsec_the_secret_of_this_route"
SIGNATURE_HEADERS = {"stripe": "stripe-signature", "github": "x-hub-signature-256"}
TYPES = {"stripe": "invoice.paid", "github": "issues.opened"}
SHORT_BODY = (
    b'{"id":"evt_1","object":"event","type":"invoice.paid","created":1794800000,'
    b'"livemode":false,"action":"opened","name":"Zo\xc3\xab"}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    headers: dict[str, str]
    body: bytes
    secret: bytes
    signed_at: datetime


def load(case: Path) -> Recorded:
    request = json.loads((case / "request.json").read_text())
    return Recorded(
        headers=request["headers"],
        body=(case / "body").read_bytes(),
        secret=request["secret"].encode(),
        signed_at=datetime.fromtimestamp(request["signed_at"], UTC),
    )


def receive(provider: Provider, headers: Headers, body: bytes, *, now: datetime = NOW) -> Envelope:
    incoming = Incoming(headers, body)
    provider.verify(incoming, keys=[SECRET], now=now, tolerance=provider.tolerance)
    return provider.read(incoming)


def signed(provider: Provider, body: bytes) -> dict[str, str]:
    type = TYPES[provider.name]
    return provider.sign(body, secret=SECRET, id="1f0c", type=type, now=NOW).headers


def mutations(original: bytes) -> Iterator[bytes]:
    """The bytes with each in turn replaced, deleted, doubled, or made the last."""
    for index, byte in enumerate(original):
        before, after = original[:index], original[index + 1 :]
        one = bytes([byte])
        substitutes = {b"\0", b"\xff", b"\xb2", b" ", b",", b"=", b"0", one.swapcase()}
        substitutes |= {bytes([byte ^ 1]), bytes([byte ^ 0x80]), one * 2, b""}
        yield from (before + substitute + after for substitute in substitutes - {one})
        yield before
    yield from (original + tail for tail in (b",", b" ", b"\0", b"\n", b"=", b"0"))
    yield from (head + original for head in (b",", b" ", b"\0", b"=", b"0"))


SENDERS = {name: PROVIDERS[name] for name in TYPES}


@pytest.fixture(params=SENDERS.values(), ids=list(SENDERS))
def provider(request: pytest.FixtureRequest) -> Provider:
    value = request.param
    assert isinstance(value, Provider)
    return value


def test_every_provider_is_listed_under_its_own_name() -> None:
    assert {"stripe", "github", "publish", "slack"} <= set(PROVIDERS)
    assert all(name == provider.name for name, provider in PROVIDERS.items())


def test_a_queue_lets_nobody_in() -> None:
    queue = PROVIDERS["publish"]
    with pytest.raises(BadSignature):
        queue.verify(Incoming({}, b"{}"), keys=[b""], now=NOW, tolerance=None)


@pytest.mark.parametrize(
    ("case", "event_id", "type"),
    [
        ("stripe/snapshot", None, "invoice.paid"),
        ("stripe/thin", None, "v1.billing.meter.error_report_triggered"),
        ("github/json", "6f1d2c80-c1b4-11f1-8f3e-2b7a5d90e6aa", "issues.opened"),
        ("github/form", "72b3a5d4-c1b4-11f1-9a0b-51f0c3e2d7bb", "push"),
    ],
)
def test_requests_signed_by_the_vendors_libraries_pass(
    case: str, event_id: str | None, type: str
) -> None:
    recorded = load(SAMPLES / case)
    provider = PROVIDERS[case.partition("/")[0]]
    incoming = Incoming(recorded.headers, recorded.body)
    verified = provider.verify(
        incoming,
        keys=[b"another", recorded.secret],
        now=recorded.signed_at,
        tolerance=provider.tolerance,
    )
    envelope = provider.read(incoming)
    assert verified.key == 1
    assert envelope.id == (event_id or json.loads(recorded.body)["id"])
    assert envelope.type == type


def test_our_signer_and_verifier_agree(provider: Provider) -> None:
    sample = make_sample(provider.name, TYPES[provider.name], now=NOW)
    sent = provider.sign(sample.body, secret=SECRET, id=sample.id, type=sample.type, now=NOW)
    envelope = receive(provider, sent.headers, sent.body)
    assert (envelope.id, envelope.type) == (sample.id, sample.type)


def test_every_change_to_the_signature_header_is_refused(provider: Provider) -> None:
    headers = signed(provider, SHORT_BODY)
    name = SIGNATURE_HEADERS[provider.name]
    receive(provider, headers, SHORT_BODY)
    for changed in mutations(headers[name].encode("latin-1")):
        with pytest.raises(BadSignature):
            receive(provider, {**headers, name: changed.decode("latin-1")}, SHORT_BODY)


def test_every_change_to_the_body_is_refused(provider: Provider) -> None:
    headers = signed(provider, SHORT_BODY)
    for changed in mutations(SHORT_BODY):
        with pytest.raises(BadSignature):
            receive(provider, headers, changed)


def test_a_request_without_a_signature_is_refused(provider: Provider) -> None:
    headers = signed(provider, SHORT_BODY)
    del headers[SIGNATURE_HEADERS[provider.name]]
    with pytest.raises(BadSignature):
        receive(provider, headers, SHORT_BODY)


def test_a_request_signed_with_another_secret_is_refused(provider: Provider) -> None:
    headers = provider.sign(SHORT_BODY, secret=b"guess", id="1", type="x.y", now=NOW).headers
    with pytest.raises(BadSignature):
        receive(provider, headers, SHORT_BODY)


@pytest.mark.parametrize("secrets", [[], [b""], [b"", b" \n"]])
def test_without_a_secret_everything_is_refused(provider: Provider, secrets: list[bytes]) -> None:
    for secret in secrets or [b""]:
        headers = provider.sign(SHORT_BODY, secret=secret, id="1", type="x.y", now=NOW).headers
        incoming = Incoming(headers, SHORT_BODY)
        with pytest.raises(BadSignature):
            provider.verify(incoming, keys=secrets, now=NOW, tolerance=None)


def test_any_of_several_secrets_may_match_and_its_index_is_told(provider: Provider) -> None:
    for index, secret in enumerate([b"new", b"old", b"older"]):
        headers = provider.sign(SHORT_BODY, secret=secret, id="1", type="x.y", now=NOW).headers
        incoming = Incoming(headers, SHORT_BODY)
        secrets = [b"new", b"old", b"older"]
        found = provider.verify(incoming, keys=secrets, now=NOW, tolerance=None)
        assert found.key == index


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'"x"',
        b"1",
        b"true",
        b"{",
        b"{}x",
        b"NaN",
        b"\xef\xbb\xbf{}",
        b'{"id":"\xff"}',
        b'{"id":"\xed\xa0\x80"}',
        b'{"id":"\\ud800"}',
        b"\x00",
        b"a=1",
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"[" * 100000,
        b'{"n":1e999}',
    ],
)
def test_what_is_signed_but_no_json_object_is_a_bad_payload(
    provider: Provider, body: bytes
) -> None:
    with pytest.raises(BadPayload):
        receive(provider, signed(provider, body), body)


def test_a_reason_stays_short_however_large_the_payload_is(provider: Provider) -> None:
    nested = b'{"a":' * 1000 + b"1" + b"}" * 1000
    for value in (nested, b'"' + b"x" * 10**6 + b'"', b"[" + b"1," * 10**5 + b"1]"):
        body = b'{"object":%b,"action":%b}' % (value, value)
        with pytest.raises(BadPayload) as caught:
            receive(provider, signed(provider, body), body)
        assert len(caught.value.reason) < 200


latin_1 = st.text(st.characters(max_codepoint=255))
pieces = st.lists(
    st.sampled_from(
        ["t=", "v1=", "v0=", ",", "=", "sha256=", "1794800000", "ab" * 32, "\xff", "\0"]
    )
    | latin_1
).map("".join)


@settings(max_examples=500)
@given(header=latin_1 | pieces, body=st.binary(), name=st.sampled_from(sorted(SENDERS)))
def test_any_header_and_any_body_are_refused_and_never_an_error(
    header: str, body: bytes, name: str
) -> None:
    headers = {SIGNATURE_HEADERS[name]: header, "content-type": header}
    with pytest.raises(RequestRejected):
        receive(PROVIDERS[name], headers, body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
members: dict[str, st.SearchStrategy[object]] = {
    "object": st.sampled_from(["event", "v2.core.event"]) | json_values,
    "id": st.just("evt_1") | json_values,
    "type": st.just("invoice.paid") | json_values,
    "created": st.integers(0, 2**33) | st.datetimes().map(lambda at: f"{at}Z") | json_values,
    "livemode": st.booleans() | json_values,
    "account": json_values,
    "context": json_values,
    "action": st.just("opened") | json_values,
    "organization": st.fixed_dictionaries({"login": json_values}) | json_values,
    "repository": st.fixed_dictionaries({"owner": json_values}) | json_values,
}
documents = st.fixed_dictionaries({}, optional=members).map(
    lambda value: json.dumps(value).encode()
)


@settings(max_examples=500)
@given(
    body=documents | st.binary(),
    delivery=st.just("1f0c") | latin_1,
    event=st.just("push") | latin_1,
    form=st.booleans(),
    name=st.sampled_from(sorted(SENDERS)),
)
def test_what_is_read_from_any_signed_body_can_be_stored(
    body: bytes, delivery: str, event: str, form: bool, name: str
) -> None:
    kind = "application/x-www-form-urlencoded" if form else "application/json"
    headers = {"content-type": kind, "x-github-delivery": delivery, "x-github-event": event}
    try:
        envelope = PROVIDERS[name].read(Incoming(headers, b"payload=" + body if form else body))
    except BadPayload:
        return
    for text in (envelope.id, envelope.type, envelope.account or "-"):
        assert 1 <= len(text.encode().decode()) <= 255
        assert "\0" not in text
    assert envelope.occurred_at is None or envelope.occurred_at.utcoffset() == timedelta(0)


@pytest.mark.parametrize("attribute", ["verify", "read", "sign"])
def test_the_functions_are_plain_and_keep_no_state(provider: Provider, attribute: str) -> None:
    function: Callable[..., object] = getattr(provider, attribute)
    assert not getattr(function, "__closure__", None)
    assert function.__module__ == f"gateway.providers.{provider.name}"
