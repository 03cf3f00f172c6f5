"""What hypothesis makes up: in the shapes that the parsers expect, as bytes seldom are."""

import hashlib
from typing import Any
from urllib.parse import quote_plus

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.base.errors import RequestRejected
from gateway.base.model import FORM, payload_bytes
from gateway.config.registry.key_path import LONGEST_KEY, KeyPath
from gateway.providers import PROVIDERS, Incoming
from gateway.providers.publish import read_job

TRIES = settings(max_examples=150, derandomize=True, database=None)
TEXT = st.text(st.characters(codec=None), max_size=20)
"""Any character: NUL, lone surrogates, whatever is no character at all."""
NUMBER = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.just(10**400), st.just(-0.0)
)
LEAF = st.none() | st.booleans() | NUMBER | TEXT
JSON = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def written(value: Any) -> bytes:
    """JSON as the most careless of senders writes it."""
    if isinstance(value, dict):
        pairs = [written(key) + b":" + written(item) for key, item in value.items()]
        return b"{" + b",".join(pairs) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(written, value)) + b"]"
    if isinstance(value, str):
        return '"{}"'.format(
            "".join(
                f"\\u{ord(char):04x}" if ord(char) < 0x20 or char in '"\\' else char
                for char in value
            )
        ).encode("utf-8", "surrogatepass")
    if isinstance(value, int) and not isinstance(value, bool):
        return b"%d" % value
    return orjson.dumps(value)


STRIPE = st.fixed_dictionaries(
    {
        "object": st.sampled_from(["event", "v2.core.event"]) | JSON,
        "id": st.just("evt_1") | JSON,
        "type": st.just("a.b") | JSON,
        "livemode": st.booleans() | JSON,
        "created": st.integers(0, 2**40) | st.just("2026-01-01T00:00:00Z") | JSON,
    },
    optional={"account": JSON, "context": JSON, "data": JSON},
)


@TRIES
@given(STRIPE)
def test_an_event_of_stripe_is_read_or_refused(event: Any) -> None:
    try:
        envelope = PROVIDERS["stripe"].read(Incoming({}, written(event)))
    except RequestRejected:
        return
    assert orjson.dumps([envelope.id, envelope.type, envelope.account])
    assert "\0" not in envelope.id + envelope.type + (envelope.account or "")


@TRIES
@given(st.dictionaries(st.sampled_from(["action", "repository", "organization"]), JSON), JSON)
def test_an_event_of_github_is_read_or_refused(event: Any, inner: Any) -> None:
    headers = {"x-github-delivery": "guid", "x-github-event": "push", "content-type": FORM}
    document = written({**event, "installation": inner})
    try:
        PROVIDERS["github"].read(Incoming(headers, b"payload=" + quote_plus(document).encode()))
    except RequestRejected:
        return


@TRIES
@given(st.binary(max_size=300))
def test_a_form_gives_back_what_was_put_in(document: bytes) -> None:
    body = b"a=b&payload=" + quote_plus(document).encode()
    assert payload_bytes({"content-type": FORM}, body) == document


@TRIES
@given(
    st.fixed_dictionaries(
        {"payload": JSON},
        optional={"idempotencyKey": JSON, "delaySeconds": JSON, "type": JSON, "other": JSON},
    ),
    st.none() | st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=300),
)
def test_a_job_is_read_or_refused(request: Any, key: str | None) -> None:
    headers = {} if key is None else {"idempotency-key": key}
    try:
        job = read_job("mails", headers, written(request))
    except RequestRejected:
        return
    assert orjson.loads(job.body) == orjson.loads(written(request))["payload"]
    assert job.id
    assert job.id.isprintable()
    assert len(job.digest) == hashlib.sha256().digest_size


@TRIES
@given(JSON, st.lists(st.sampled_from(["a", "0", "1"]), min_size=1, max_size=3))
def test_a_key_is_short_and_can_be_stored(payload: Any, steps: list[str]) -> None:
    try:
        read = orjson.loads(written(payload))
    except ValueError:
        return
    key = KeyPath((tuple(steps),)).key({"a": read, "0": [read]})
    if key is not None:
        assert len(key) <= LONGEST_KEY
        assert "\0" not in key
        assert key.encode()
