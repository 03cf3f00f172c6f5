"""What a request to publish says: read exactly, or refused in words."""

import json
from contextlib import suppress
from datetime import timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.jobs import Publish
from gateway.base.errors import BadJob, BadPayload
from gateway.providers.publish import (
    DEEPEST,
    EXACT,
    FIELDS,
    JobRequest,
    job_digest,
    read_job,
    read_payload,
)


def read(request: Any, **headers: str) -> JobRequest:
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_job("orders", named, body)


def test_all_that_can_be_said_is_read() -> None:
    job = read(
        {
            "payload": {"order": 1},
            "idempotencyKey": "order:9482:charge",
            "delaySeconds": 0.5,
            "type": "order.charge",
        }
    )
    assert (job.id, job.type, job.delay) == (
        "order:9482:charge",
        "order.charge",
        timedelta(seconds=0.5),
    )
    assert orjson.loads(job.body) == {"order": 1}


def test_the_document_has_the_fields_that_are_read() -> None:
    assert tuple(Publish.model_fields) == FIELDS


def test_a_payload_is_enough() -> None:
    one, two = read({"payload": None}), read({"payload": None})
    assert (one.body, one.type, one.delay) == (b"null", "orders", timedelta(0))
    assert one.id != two.id
    assert one.id.startswith("job_")


def test_null_is_as_good_as_nothing() -> None:
    job = read({"payload": 1, "idempotencyKey": None, "delaySeconds": None, "type": None})
    assert (job.id[:4], job.type, job.delay) == ("job_", "orders", timedelta(0))


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("order:1", "order:1"),
        ("two words, and a comma", "two words, and a comma"),
        ('"order:1"', "order:1"),
        (r'"a \"b\" \\c"', r'a "b" \c'),
        ("x" * 255, "x" * 255),
    ],
)
def test_the_key_may_stand_in_the_header(header: str, key: str) -> None:
    assert read({"payload": 1}, idempotency_key=header).id == key
    assert read({"payload": 1, "idempotencyKey": key}, idempotency_key=header).id == key


@pytest.mark.parametrize(
    "header",
    [
        "",
        '"',
        '""',
        '"a',
        '"a";b=1',
        '"a\\b"',
        "a\nb",
        "x" * 256,
        "clé",
        "\x00",
        " a",
        "\t",
        "\x7f",
    ],
)
def test_a_header_that_is_no_key_is_refused(header: str) -> None:
    with pytest.raises(BadJob, match=r"Idempotency-Key header: found .*; expected one of"):
        read({"payload": 1}, idempotency_key=header)


def test_two_different_keys_are_refused() -> None:
    with pytest.raises(BadJob, match=r"found 'a', and 'b' in the Idempotency-Key header"):
        read({"payload": 1, "idempotencyKey": "a"}, idempotency_key="b")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"idempotencyKey": ""}, "`idempotencyKey`: found ''; expected a text"),
        ({"idempotencyKey": 7}, "`idempotencyKey`: found 7; expected a text"),
        ({"idempotencyKey": "a\0b"}, r"`idempotencyKey`: found 'a\x00b'; expected a text"),
        ({"idempotencyKey": "x" * 256}, "`idempotencyKey`: found 256 characters; expected a text"),
        ({"idempotencyKey": ["a"]}, "`idempotencyKey`: found a list; expected a text"),
        ({"type": "\n"}, r"`type`: found '\n'; expected a text"),
        ({"type": {}}, "`type`: found an object; expected a text"),
        ({"delaySeconds": -1}, "`delaySeconds`: found -1; expected a number from 0 to 2592000"),
        ({"delaySeconds": 2592001}, "`delaySeconds`: found 2592001; expected"),
        ({"delaySeconds": True}, "`delaySeconds`: found True; expected"),
        ({"delaySeconds": "30"}, "`delaySeconds`: found '30'; expected"),
        ({"delaySeconds": 1e300}, "`delaySeconds`: found 1e+300; expected"),
        ({"delay": 30}, "found 'delay'; expected only payload, idempotencyKey, delaySeconds, type"),
    ],
)
def test_what_is_not_the_payloads_fault_is_a_bad_request(fields: Any, said: str) -> None:
    with pytest.raises(BadJob) as refusal:
        read({"payload": 1, **fields})
    assert said in refusal.value.reason
    assert refusal.value.code == "BAD_REQUEST"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "found a list; expected a JSON object"),
        (b"{}", "`payload`: found nothing; expected any JSON"),
        (b'{"payload": NaN}', "not JSON"),
        (b'{"payload": 1e400}', "not JSON"),
        (b'{"payload": "\\ud800"}', "not JSON"),
        (b'{"payload": "\xff"}', "not JSON"),
        (b'\xef\xbb\xbf{"payload": 1}', "not JSON"),
        (b'{"payload": {"a": 1, "b": {"c": 1, "c": 2}}}', "found the key 'c' twice"),
        (b'{"payload": 1, "payload": 1}', "found the key 'payload' twice"),
        # Too deep for Python 3.11; a newer one reads it, and finds the key a second time.
        (b'{"type": ' + b"[" * 1000 + b"]" * 1000 + b', "type": "a", "payload": 1}', "expected "),
        (b'{"payload": 18446744073709551616}', "found an integer of 20 characters; expected one"),
        (b'{"payload": -9223372036854775809}', "found an integer of 20 characters; expected one"),
        (b'{"payload": ' + b"9" * 300 + b"}", "found an integer of 300 characters; expected one"),
        (b'{"payload": ' + b"[" * 255 + b"]" * 255 + b"}", "found more than 254 levels"),
        (b'{"payload": ' + b"[" * 900 + b"]" * 900 + b"}", "found more than 254 levels"),
        (b'{"payload": ' + b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_payload_is_refused_in_words(body: bytes, said: str) -> None:
    with pytest.raises(BadPayload) as refusal:
        read(body)
    assert said in refusal.value.reason


def test_the_deepest_payload_that_a_handler_could_publish_is_taken() -> None:
    body = b"[" * DEEPEST + b"]" * DEEPEST
    assert read(b'{"payload": ' + body + b"}").body == body


def test_the_same_meaning_written_otherwise_is_the_same_job() -> None:
    one = read(b'{"payload": {"a": 1.0, "b": "\\u00e9", "c": [1e2, -0.0]}}')
    two = read('{"payload": {"c": [100, 0], "b": "é", "a": 1}}'.encode())
    assert one.digest == two.digest


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"payload": 1}, {"payload": "1"}),
        ({"payload": 1}, {"payload": True}),
        ({"payload": None}, {"payload": {}}),
        ({"payload": [1, 2]}, {"payload": [2, 1]}),
        ({"payload": 1}, {"payload": 1, "type": "other"}),
        ({"payload": 2**53}, {"payload": 2**53 + 1}),
        ({"payload": 2**64 - 1}, {"payload": 2**64 - 2}),
    ],
)
def test_another_payload_or_type_is_another_job(one: Any, two: Any) -> None:
    assert read(one).digest != read(two).digest


Payload = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@given(Payload)
def test_what_a_handler_publishes_is_the_same_job_over_http(payload: Any) -> None:
    body = orjson.dumps(payload)
    by_handler = job_digest("orders", EXACT.decode(body.decode()))
    over_http = read(json.dumps({"payload": payload}).encode())
    assert over_http.digest == by_handler
    assert orjson.loads(over_http.body) == payload


@given(st.binary() | st.text().map(lambda t: json.dumps({"payload": 1, "type": t}).encode()))
def test_no_bytes_are_more_than_a_refusal(body: bytes) -> None:
    with suppress(BadPayload, BadJob):
        assert read(body).body == b"1"


@pytest.mark.parametrize("text", [b"{", b'{"a":1,"a":2}', b"9" * 30, b'1}, "x": {'])
def test_a_file_is_refused_as_the_gateway_would(text: bytes) -> None:
    with pytest.raises(BadPayload):
        read_payload(text)


def test_a_file_is_read() -> None:
    assert read_payload(b' {"a": 1.0}\n') == {"a": 1.0}
