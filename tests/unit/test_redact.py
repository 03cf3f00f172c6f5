"""`redact`: nothing of a redacted field is left, and nothing else is touched."""

import json
from typing import Any
from urllib.parse import parse_qsl, quote_plus

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.operations.inspect import (
    UNKNOWN,
    UNREADABLE,
    UNSEARCHABLE,
    find_redaction,
    redact_event,
)
from gateway.privacy.redaction import (
    MOST,
    WHOLE,
    FieldPath,
    RedactAt,
    Redaction,
    fits,
    hide_in,
    hide_values,
)
from tests.support.workers import make_config, make_route

FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
KEYS = st.sampled_from(["a", "b", "email", "0", "*", 'with "quotes"', "ü", "\\", ""])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.just("}],{[\\"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=30,
)
PATHS = st.lists(
    st.lists(st.sampled_from(["a", "b", "email", "0", "1", "*", "ü"]), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)


def redaction(*paths: str, at: RedactAt = RedactAt.SHOW) -> Redaction:
    return Redaction(tuple(map(FieldPath.parse, paths)), at)


def shown(document: bytes, *paths: str, headers: dict[str, str] | None = None) -> bytes:
    return redaction(*paths).apply(headers or {}, document).body


def expected(node: Any, paths: list[list[str]]) -> Any:
    """The same by another way: on the parsed document."""
    if [] in paths:
        return "[redacted]"
    if isinstance(node, dict):
        pairs = node.items()
        return {k: expected(v, [p[1:] for p in paths if fits(p[0], k)]) for k, v in pairs}
    if isinstance(node, list):
        return [
            expected(v, [p[1:] for p in paths if fits(p[0], place)]) for place, v in enumerate(node)
        ]
    return node


@given(document=st.dictionaries(KEYS, JSON) | st.lists(JSON), paths=PATHS, data=st.data())
@example(document={"a": ['"', {"b": "\\"}]}, paths=[["a", "*", "b"]], data=None)
def test_what_is_left_is_what_a_parser_would_leave(
    document: Any, paths: list[list[str]], data: Any
) -> None:
    indent = data.draw(st.sampled_from([None, 1])) if data else None
    ascii_only = data.draw(st.booleans()) if data else True
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    try:
        body = text.encode()
        orjson.loads(body)
    except ValueError:  # a lone surrogate
        return
    after = shown(body, *(".".join(path) for path in paths))
    assert orjson.loads(after) == expected(document, paths)


def test_all_else_is_left_byte_by_byte() -> None:
    body = (
        b'\n{ "id" : 123456789012345678901234567890, "rate":1.10000000000000000000001e+300,\t'
        b'"t": 1E5, "email" : "a@b.example",  "n": -0.0, "x": "\\u00e9\\/", "x": "twice",'
        b' "deep": [ {"email": {"who": [1, "}"]}, "z": 18446744073709551616} ] }\r\n'
    )
    after = shown(body, "email", "deep.*.email")
    assert after == body.replace(b'"a@b.example"', WHOLE).replace(b'{"who": [1, "}"]}', WHOLE)


def test_without_a_match_the_body_is_the_same_object() -> None:
    body = b'{"a": 1}'
    assert shown(body, "b.c", "a.b", "a.*") is body


@pytest.mark.parametrize(
    "body",
    [
        b'{"email": "one@b.example", "email": "two@b.example"}',
        b'{"\\u0065mail": "one@b.example", "em\\u0061il": ["two@b.example"]}',
        b'{"email": {"email": "one@b.example"}, "a": 1}',
        b' {"email":"one@b.example\\"\\\\"}',
    ],
)
def test_no_way_to_write_it_keeps_a_field_in_sight(body: bytes) -> None:
    assert b"b.example" not in shown(body, "email")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"not json", b'{"email": "a@b.example"', b'{"email": "a@b.example"} x'),
        *(b'"a@b.example"', b"12345678", b"null", b"\xef\xbb\xbf{}", b'{"a": "\xff"}', b"a=1"),
        '{"email": "a@b.example"}'.encode("utf-16"),
        b'{"a": NaN, "email": "a@b.example"}',
        b'{"a": "\\ud800", "email": "a@b.example"}',
        b"[" * 2000 + b"]" * 2000,
    ],
)
def test_a_body_without_fields_is_not_shown_at_all(body: bytes) -> None:
    after = redaction("email").apply({}, body)
    assert (after.body, after.is_whole) == (WHOLE, True)


def test_a_document_of_a_thousand_levels_is_walked() -> None:
    inner = b'{"a":' * 1000 + b"1" + b"}" * 1000
    body = b'{"email":"a@b.example","skip":%s,"after":{"email":"c@b.example"}}' % inner
    after = shown(body, "email", "after.email")
    assert b"b.example" not in after
    assert inner in after
    assert shown(b'{"email":%s}' % inner, "email") == b'{"email":"[redacted]"}'


def test_the_document_in_a_form_is_redacted_and_the_form_left_alone() -> None:
    document = b'{"n": 1.10, "sender": {"email": "a@b.example +&=%"}, "\xc3\xbc": "x y"}'
    body = b"payload=" + quote_plus(document).encode() + b"&other=a%2Bb"
    after = shown(body, "sender.email", headers=FORM)
    fields = dict(parse_qsl(after.decode(), strict_parsing=True))
    assert fields["payload"] == document.decode().replace('"a@b.example +&=%"', '"[redacted]"')
    assert after.endswith(b"&other=a%2Bb")
    assert shown(body, "sender.phone", headers=FORM) == body


def test_the_fields_of_a_form_are_redacted_by_name() -> None:
    body = b"From=%2B4930123456&Body=hello+there&To=%2B1555&F%72om=again&user%5Bname%5D=Ann"
    after = shown(body, "From", "Body", "user[name]", headers=FORM)
    assert parse_qsl(after.decode()) == [
        ("From", "[redacted]"),
        ("Body", "[redacted]"),
        ("To", "+1555"),
        ("From", "[redacted]"),
        ("user[name]", "[redacted]"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"<email>a=b</email>",
        *(b"email", b"email=a&b", b"a=\xff", b"a=b c"),
        b"payload=%7B&email=a@b.example",
        b"payload=%7B%7D&payload=%7B%7D",
        b"p%61yload=%7B%22email%22%3A%22a%40b.example%22%7D",
        b"payload=%7B%7D&p%61yload=%7B%22email%22%3A%22a%40b.example%22%7D",
    ],
)
def test_what_only_claims_to_be_a_form_is_not_shown_at_all(body: bytes) -> None:
    assert shown(body, "email", headers=FORM) == WHOLE


def test_json_that_is_called_a_form_is_redacted_as_json() -> None:
    body = b'{"email": "a=b&payload=%7B%7D", "n": 1}'
    assert shown(body, "email", headers=FORM) == b'{"email": "[redacted]", "n": 1}'


def test_at_show_the_stored_body_is_the_one_that_came() -> None:
    body = b'{"email": "a@b.example"}'
    assert redaction("email").store({}, body) is body
    assert redaction("email", at=RedactAt.STORE).store({}, body) == b'{"email": "[redacted]"}'


ADDRESS = "a.person+1@b.example"


@pytest.mark.parametrize(
    "text",
    [
        f"KeyError: '{ADDRESS}'",
        f"Key (email)=({ADDRESS}) already exists.",
        "for url 'https://api.example/?email=a.person%2B1%40b.example'",
        "https://api.example/a.person%2B1@b.example",
        f"{ADDRESS.encode()!r}",
        f"x{ADDRESS}x",
    ],
)
def test_errors_do_not_quote_a_redacted_value(text: str) -> None:
    hide = redaction("who.email").hiding({}, orjson.dumps({"who": {"email": ADDRESS}}))
    assert "person" not in hide(text)
    assert "[redacted]" in hide(text)


def test_values_are_found_however_they_are_quoted() -> None:
    value = 'Zoë "Z"\n Doe\\'
    hide = hide_values([{"name": [value], "pin": 1234}], "[redacted]")
    for form in (value, repr(value), ascii(value), json.dumps(value), " ".join(value.split())):
        assert "Zo" not in hide(f"<{form}>")
    assert hide("pin 1234, not 12345 nor name") == "pin [redacted], not 12345 nor name"


def test_where_the_fields_cannot_be_found_no_text_about_the_event_is_shown() -> None:
    hide = redaction("email").hiding({}, b"<email>a@b.example</email>")
    assert hide("no such person: a@b.example") == "[redacted]"
    hide = redaction("email", at=RedactAt.STORE).hiding({}, WHOLE)  # nobody has seen more of it
    assert hide("no such file") == "no such file"


def test_short_values_do_not_eat_words() -> None:
    hide = hide_values(["an", "paid"], "[redacted]")
    assert hide("an unpaid invoice, paid") == "an unpaid invoice, [redacted]"


def test_with_too_many_values_to_look_for_the_whole_text_is_hidden() -> None:
    hide = hide_values([[f"value {n}" for n in range(MOST + 1)]], "[redacted]")
    assert hide("anything") == "[redacted]"


def test_texts_within_values_are_searched_too() -> None:
    hide = hide_values(["Ann Doe", 5551234], "[redacted]")
    deep = {"who": ["Ann Doe", {"Ann Doe": 5551234}], "n": 7, "none": None, "yes": True}
    assert hide_in(deep, hide) == {
        "who": ["[redacted]", {"[redacted]": "[redacted]"}],
        "n": 7,
        "none": None,
        "yes": True,
    }


def event(body: bytes | None, **changes: Any) -> dict[str, Any]:
    attempt = {"number": 1, "error": "ValueError: a@b.example"}
    effect = {"name": "mail", "result": '"sent to a@b.example"'}
    delivery = {"error": "ValueError: a@b.example", "attempt_log": [attempt], "effects": [effect]}
    return {"route": "stripe", "headers": {}, "body": body, "deliveries": [delivery]} | changes


def test_an_event_is_shown_without_the_fields_and_without_what_quotes_them() -> None:
    seen = redact_event(event(b'{"email": "a@b.example"}'), redaction("email"))
    assert b"b.example" not in orjson.dumps(seen, default=repr)
    assert seen["body"] == b'{"email": "[redacted]"}'
    assert seen["redacted"] == "email"
    assert seen["deliveries"][0]["error"] == "ValueError: [redacted]"
    assert seen["deliveries"][0]["effects"][0]["result"] == '"sent to [redacted]"'


def test_without_a_payload_what_may_quote_it_is_not_shown() -> None:
    seen = redact_event(event(None), redaction("email"))
    assert seen["deliveries"][0]["effects"][0]["result"] == "[redacted]"
    assert (seen["body"], seen["redacted"]) == (None, "email")


@pytest.mark.parametrize("reason", [UNKNOWN, UNREADABLE])
def test_where_it_is_not_known_what_is_redacted_nothing_is_shown(reason: str) -> None:
    seen = redact_event(event(b'{"email": "a@b.example"}'), reason)
    assert (seen["body"], seen["redacted"]) == (WHOLE, reason)
    assert "b.example" not in str(seen["deliveries"][0]["effects"])


def test_a_body_that_cannot_be_searched_is_not_shown() -> None:
    seen = redact_event(event(b"<email>a@b.example</email>"), redaction("email"))
    assert (seen["body"], seen["redacted"]) == (WHOLE, UNSEARCHABLE)


def test_a_route_without_redaction_shows_what_it_has() -> None:
    config = make_config(make_route(), make_route("private", redaction=redaction("a")))
    assert find_redaction(config, "stripe") is None
    assert find_redaction(config, "private") == redaction("a")
    assert find_redaction(config, "gone") == UNKNOWN
    assert redact_event(event(b"raw"), None) == event(b"raw", redacted=None)
