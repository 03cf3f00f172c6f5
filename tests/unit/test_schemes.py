"""Schemes described in YAML: what may be said, and that nothing odd gets through."""

import base64
import hmac
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.base.errors import BadPayload, BadSignature, ConfigInvalid, RequestRejected
from gateway.base.model import RepeatPolicy, read_payload
from gateway.config.routes import load_config
from gateway.config.routes.scheme import find_provider
from gateway.dev.known_types import check_known
from gateway.providers import PROVIDERS, Incoming, Provider
from gateway.providers.provider import Integrity
from gateway.providers.samples import make_sample, receive_alone
from gateway.providers.schemes.batch import MOST_ITEMS, split_items
from gateway.providers.schemes.message import composer
from gateway.providers.schemes.places import Looked
from gateway.providers.schemes.sections import KINDS as SECTIONS
from gateway.providers.schemes.sections import SignedSection

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
E_ACUTE = b'"\xc3\xa9"'
SIGNED = "signature: {at: header.x-sig}"
SCHEMES: dict[str, dict[str, Any]] = {
    "body": {"provider": "hmac", "scheme": {"signature": {"at": "header.x-sig"}, "type": "json.t"}},
    "pairs": {
        "provider": "hmac",
        "scheme": {
            "signature": {"at": "header.x-sig", "separator": ",", "field": "v1"},
            "timestamp": {"at": "header.x-sig", "separator": ",", "field": "t"},
            "signed": "{timestamp}.{body}",
            "algorithm": "sha512",
            "key": "hex",
            "type": ["{json.t}.{json.action}", "json.t"],
        },
    },
    "inside": {
        "provider": "hmac",
        "scheme": {
            "signature": {"at": "json.proof.mac", "encoding": "base64"},
            "signed": "{timestamp}/{json.proof.token}",
            "timestamp": {"at": "json.proof.time", "unit": "iso"},
            "id": "json.id",
            "type": "json.t",
        },
    },
    "url": {
        "provider": "hmac",
        "scheme": {
            "signature": {"at": "query.sig", "encoding": "base64url"},
            "signed": "{method} {path} {header.x-nonce} {body}",
            "algorithm": "sha1",
            "id": "header.x-nonce",
            "type": "push",
        },
    },
    "form": {
        "provider": "hmac",
        "scheme": {
            "signature": {"at": "header.x-sig", "encoding": "base64"},
            "signed": "{url}{params}",
            "id": "form.Sid",
            "type": "form.Status",
        },
    },
    "each": {
        "provider": "hmac",
        "scheme": {
            "signature": {"at": "json.mac"},
            "signed": "{json.id}:{json.t}:{json.note?}",
            "batch": "json.list.of",
            "each": True,
            "id": "json.id",
            "type": "json.t",
        },
    },
    "ed25519": {
        "provider": "ed25519",
        "scheme": {
            "signature": {"at": "header.x-sig"},
            "timestamp": {"at": "json.sent", "unit": "ms"},
            "type": "json.t",
        },
    },
    "ecdsa": {
        "provider": "ecdsa",
        "scheme": {
            "signature": {"at": "header.x-sig", "encoding": "base64"},
            "batch": "json",
            "id": "{json.a}.{json.b}",
            "type": "json.t",
        },
    },
    "bearer": {
        "provider": "bearer",
        "scheme": {
            "token": {"at": "header.authorization", "prefix": "Bearer "},
            "id": "json.update_id",
            "type": "json.*update_id",
        },
    },
    "basic": {"provider": "basic", "scheme": {"id": "json.id", "type": "json.t"}},
}


def provider_of(name: str) -> Provider:
    provider = find_provider(SCHEMES[name])
    assert provider is not None
    return provider


PROVIDERS_HERE = {name: provider_of(name) for name in SCHEMES}
SECRETS = {name: provider.make_secret() for name, provider in PROVIDERS_HERE.items()}


def request_of(name: str) -> Incoming:
    provider = PROVIDERS_HERE[name]
    type = provider.drafts.example if provider.drafts else ""
    sample = make_sample(provider, type, now=NOW)
    signed = provider.sign(
        sample.body,
        secret=SECRETS[name].encode(),
        id=sample.id,
        type=type,
        now=NOW,
        url="https://hooks.example.com/in",
    )
    return Incoming(signed.headers, signed.body, "POST", signed.url)


REQUESTS = {name: request_of(name) for name in SCHEMES}


def accept(name: str, incoming: Incoming, *, now: datetime = NOW) -> None:
    """All that a server does with a request before it claims."""
    provider = PROVIDERS_HERE[name]
    key = provider.read_key(SECRETS[name].encode())
    provider.verify(incoming, keys=[key], now=now, tolerance=provider.tolerance)
    for item in [incoming] if provider.split is None else provider.split(incoming):
        provider.read(item)


@pytest.mark.parametrize("name", SCHEMES)
def test_what_is_signed_as_the_scheme_says_is_accepted(name: str) -> None:
    accept(name, REQUESTS[name])


@pytest.mark.parametrize("name", SCHEMES)
def test_another_secret_no_secret_and_no_headers_are_refused(name: str) -> None:
    provider, incoming = PROVIDERS_HERE[name], REQUESTS[name]
    other = provider.read_key(provider.make_secret().encode())
    for keys in ([other], [], [b""], [b"  "]):
        with pytest.raises(BadSignature):
            provider.verify(incoming, keys=keys, now=NOW, tolerance=provider.tolerance)
    if name not in ("inside", "each"):
        bare = incoming._replace(headers={}, url="https://hooks.example.com/in")
        with pytest.raises(BadSignature):
            accept(name, bare)


def test_an_empty_key_opens_no_door() -> None:
    """Anyone can sign with it."""
    incoming = Incoming({"x-sig": hmac.digest(b"", b"{}", "sha256").hex()}, b"{}")
    for key in (b"", b" "):
        with pytest.raises(BadSignature):
            PROVIDERS_HERE["body"].verify(incoming, keys=[key], now=NOW, tolerance=None)


@pytest.mark.parametrize(
    "name", [name for name, p in PROVIDERS_HERE.items() if p.tolerance is not None]
)
def test_time_is_checked_in_both_directions(name: str) -> None:
    tolerance = PROVIDERS_HERE[name].tolerance
    assert tolerance is not None
    for side in (tolerance, -tolerance):
        accept(name, REQUESTS[name], now=NOW + side)
        with pytest.raises(RequestRejected):
            accept(name, REQUESTS[name], now=NOW + side * 1.1)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_signature_written_otherwise_is_refused(name: str) -> None:
    if PROVIDERS_HERE[name].integrity is Integrity.NONE:
        return
    incoming = REQUESTS[name]
    place = SCHEMES[name]["scheme"]["signature"]["at"]
    if place.startswith("header."):
        value = incoming.headers[place[7:]]
        for changed in (value.upper(), value + " ", " " + value, value + "=", value + "\n", ""):
            if changed != value:
                with pytest.raises(BadSignature):
                    accept(
                        name, incoming._replace(headers={**incoming.headers, place[7:]: changed})
                    )


def test_spare_bits_of_base64_are_refused() -> None:
    incoming = REQUESTS["form"]
    value = incoming.headers["x-sig"]
    assert value.endswith("=")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = alphabet[alphabet.index(value[-2]) ^ 1]
    changed = value[:-2] + other + "="
    assert base64.b64decode(changed) == base64.b64decode(value)
    with pytest.raises(BadSignature):
        accept("form", incoming._replace(headers={**incoming.headers, "x-sig": changed}))


def test_too_many_signatures_are_refused_and_several_are_tried() -> None:
    incoming = REQUESTS["pairs"]
    value = incoming.headers["x-sig"]
    for count, fits in ((15, True), (16, False)):
        more = {**incoming.headers, "x-sig": value + ",v1=00" * count}
        if fits:
            accept("pairs", incoming._replace(headers=more))
        else:
            with pytest.raises(BadSignature):
                accept("pairs", incoming._replace(headers=more))
    twice = {**incoming.headers, "x-sig": f"t=1,{value}"}
    with pytest.raises(BadSignature):
        accept("pairs", incoming._replace(headers=twice))


def test_what_is_read_before_it_is_verified_is_bounded_and_says_each_key_once() -> None:
    incoming = REQUESTS["inside"]
    body = json.loads(incoming.body)
    twice = incoming.body[:-1] + b',"t":"other"}'
    deep = b'{"proof":' + b"[" * 100_000
    huge = json.dumps({**body, "more": "x" * 1_100_000}).encode()
    for changed in (twice, deep, huge, b"\xff", b"[1]", b'{"proof":1}', b""):
        with pytest.raises(BadSignature):
            accept("inside", incoming._replace(body=changed))


TEXT = st.text(st.characters(codec="latin-1"), max_size=60) | st.sampled_from(
    ["v1=é", "t=,v1=", "t=1_0,v1=00", "٣", "\0", "=" * 5000, "v1", ",,,", "Bearer ", "Basic \xff"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "t", "proof", "mac", "token", "time", "list", "of", "a"]), inner
        )
    ),
    max_leaves=12,
)
BODY = (
    st.binary(max_size=80)
    | JSON.map(lambda value: json.dumps(value).encode())
    | JSON.map(lambda value: b"payload=" + json.dumps(value).encode())
)
NAMES_SENT = ("x-sig", "authorization", "x-nonce", "content-type")
HEADERS = st.dictionaries(st.sampled_from(NAMES_SENT), TEXT)
FORMS = st.sampled_from([{}, {"content-type": "application/x-www-form-urlencoded"}])


@settings(max_examples=60)
@given(headers=HEADERS, form=FORMS, body=BODY, url=TEXT)
def test_nothing_hostile_is_anything_but_a_refusal(
    headers: dict[str, str], form: dict[str, str], body: bytes, url: str
) -> None:
    incoming = Incoming({**headers, **form}, body, "POST", f"https://x/{url}")
    for name in SCHEMES:
        with pytest.raises(BadSignature):
            accept(name, incoming)


@settings(max_examples=60)
@given(form=FORMS, body=BODY)
def test_nothing_that_is_verified_but_odd_is_anything_but_a_bad_payload(
    form: dict[str, str], body: bytes
) -> None:
    """A sender gone mad: its secret is right, and its body is anything."""
    for provider in PROVIDERS_HERE.values():
        incoming = Incoming({"x-nonce": "1", **form}, body)
        try:
            items = [incoming] if provider.split is None else provider.split(incoming)
            for item in items:
                provider.read(item)
            if provider.greet is not None:
                provider.greet(incoming, key=b"")
        except BadPayload:
            continue


@pytest.mark.parametrize("name", sorted(set(PROVIDERS) - {"stripe", "github", "publish"}))
def test_a_sample_of_every_entry_is_verified_and_read_back(name: str) -> None:
    provider = PROVIDERS[name]
    assert provider.drafts is not None
    type = provider.drafts.example
    sample = make_sample(provider, type, now=NOW)
    envelope = provider.read(receive_alone(provider, sample, now=NOW))
    assert envelope.type == type
    if "signature" not in str(provider.facts and provider.facts.id):  # Twilio's is its id
        assert envelope.id == sample.id
    secret = provider.make_secret().encode()
    signed = provider.sign(
        sample.body, secret=secret, id=sample.id, type=type, now=NOW, url="https://x.example/w"
    )
    incoming = Incoming(signed.headers, signed.body, "POST", signed.url)
    keys = [provider.read_key(secret)]
    assert provider.verify(incoming, keys=keys, now=NOW, tolerance=provider.tolerance).key == 0


@pytest.mark.parametrize(
    ("body", "path", "items"),
    [
        (b'[{"a":1.10},\n {"b":[1,2]} , 3]', (), [b'{"a":1.10}', b'{"b":[1,2]}', b"3"]),
        (b"[]", (), []),
        (
            b' { "x" : {"of": 1}, "list" : { "of" : [ "\xc3\xa9" ] } }',
            ("list", "of"),
            [b'"\xc3\xa9"'],
        ),
        (b"[100000000000000000000000.000001]", (), [b"100000000000000000000000.000001"]),
    ],
)
def test_items_keep_their_bytes(body: bytes, path: tuple[str, ...], items: list[bytes]) -> None:
    assert split_items(body, path, BadPayload) == items


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[1",
        b"[1,",
        b"[1 2]",
        b"[,]",
        b'{"list":[1]',
        b"\xff",
        b"null",
        b"[" * 100_000,
        b"[" + b"1," * MOST_ITEMS + b"1]",
    ],
)
def test_what_is_no_list_is_a_bad_payload(body: bytes) -> None:
    with pytest.raises(BadPayload):
        split_items(body, (), BadPayload)
    with pytest.raises(BadPayload):
        split_items(b'{"other":1,"list":' + body + b"}", ("list",), BadPayload)


def said(tmp_path: Path, *lines: str, provider: str = "hmac") -> list[str]:
    """What is wrong with a scheme of these lines."""
    text = f"routes:\n  one:\n    provider: {provider}\n    secrets: [env:A]\n    scheme:\n"
    file = tmp_path / "routes.yaml"
    file.write_text(text + "".join(f"      {line}\n" for line in lines))
    try:
        load_config(file)
    except ConfigInvalid as error:
        return [f"{p.line} {p.key}: {p.found}; {p.expected}" for p in error.problems]
    return []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["signature: {at: x-sig}"], "6 routes.one.scheme.signature.at[0]: 'x-sig'; a place such"),
        ([SIGNED, "signed: '{bod}'"], "7 routes.one.scheme.signed: {bod}; text with {body}"),
        ([SIGNED, "signed: '{body'"], "7 routes.one.scheme.signed: '{body'; { and } in pairs"),
        ([SIGNED, "signed: '{timestamp}{body}'"], "`timestamp`: where it is"),
        ([SIGNED, "signed: '{id}{body}'"], "{id} in `signed`; `id`: where it is, and no digest"),
        ([SIGNED, "timestamp: {at: header.x-time}"], "freshness of an unsigned time"),
        ([SIGNED, "timestamp: {at: query.time}"], "freshness of an unsigned time"),
        ([SIGNED, "tolerance: 5m"], "a tolerance without `timestamp`"),
        (
            [
                SIGNED,
                "signed: '{timestamp}{body}'",
                "timestamp: {at: header.x-time}",
                "tolerance: 3d",
                "redelivery: 1d",
            ],
            "a day more than `redelivery` at most",
        ),
        ([SIGNED, "signed: '[id:{json.id?};]{body}'"], "[id:{json.id};], without ?"),
        ([SIGNED, "signed: '[id:{bod};]{body}'"], "{bod}; text with"),
        ([SIGNED, "retries: yes"], "7 routes.one.scheme.retries: 'yes'; true or false"),
        ([SIGNED, "each: true"], "`each` without `batch`"),
        ([SIGNED, "batch: json", "id: header.x-id"], "a batch whose items share one id"),
        ([SIGNED, "algorithm: md5"], "7 routes.one.scheme.algorithm: 'md5'; 'sha1', 'sha256'"),
        ([SIGNED, "handshake: [{status: 204}]"], "a handshake by POST without `when`"),
        (
            [SIGNED, "handshake: [{method: GET, text: '{hmac.query.crc}'}]"],
            "strangers could have anything signed",
        ),
        (
            [
                SIGNED,
                "signed: '{header.x-id}'",
                "handshake: [{when: {json.t: crc}, text: '{hmac.json.crc}'}]",
            ],
            "whoever can change it could have anything signed",
        ),
        ([SIGNED, "handshake: [{unsigned: true}]"], "without the exact `fields`"),
        ([SIGNED, "handshake: [{when: {json.a: b}, constant_key: k}]"], "without the exact `f"),
        (
            [SIGNED, "handshake: [{unsigned: true, fields: {form.a: text, json.b: text}}]"],
            "fields of the query, and of one of json and form",
        ),
        (
            [SIGNED, "handshake: [{unsigned: true, fields: {header.x-a: text}}]"],
            "without the exact `fields`",
        ),
        ([SIGNED, "handshake: [{unsigned: true, fields: {json.a.b: text}}]"], "a nested field"),
        (
            [SIGNED, "handshake: [{unsigned: true, fields: {json.a: text}, when: {json.b: c}}]"],
            "json.b in `when` or in the answer, and not in `fields`",
        ),
        (
            [SIGNED, "handshake: [{unsigned: true, fields: {query.a: text}, text: '{json.b}'}]"],
            "json.b in `when` or in the answer, and not in `fields`",
        ),
        (
            [
                SIGNED,
                "handshake: [{unsigned: true, fields: {json.a: text}, text: '{hmac.json.a}'}]",
            ],
            "strangers could have anything signed",
        ),
        (
            [SIGNED, "handshake: [{unsigned: true, constant_key: k, fields: {json.a: text}}]"],
            "`unsigned` and `constant_key`; one of the two",
        ),
        (
            [SIGNED, "handshake: [{method: GET, unsigned: true, fields: {query.a: text}}]"],
            "one of them, by POST",
        ),
        (
            [SIGNED, "handshake: [{when: {json.a: b}, fields: {json.a: text}}]"],
            "`fields` of a handshake that is verified",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(lines: list[str], expected: str, tmp_path: Path) -> None:
    problems = said(tmp_path, *lines, "type: json.type")
    assert any(expected in problem for problem in problems), problems


def test_a_scheme_is_for_senders_without_a_name(tmp_path: Path) -> None:
    assert said(tmp_path, SIGNED, "type: json.type") == []
    [problem] = said(tmp_path, "type: json.type", provider="slack")
    assert "no scheme: slack has its own" in problem
    file = tmp_path / "routes.yaml"
    file.write_text("routes:\n  one: {provider: ecdsa, secrets: [env:A]}\n")
    with pytest.raises(ConfigInvalid, match=r"how the sender proves itself: ecdsa needs it"):
        load_config(file)


def made(**scheme: Any) -> Provider:
    section = {"signature": {"at": "header.x-sig"}, "type": "json.t", **scheme}
    provider = find_provider({"provider": "hmac", "scheme": section})
    assert provider is not None
    return provider


def test_the_repeat_guard_is_on_where_the_id_is_not_signed() -> None:
    refuse = RepeatPolicy.REFUSE
    assert made(id="header.x-id").repeat_policy("a", refuse) is refuse
    assert made(id="header.x-id", honest_repeats=["a"]).repeat_policy("a", refuse) == "flag"
    assert made(id="header.x-id", honest_repeats=["a"]).repeat_policy("a.b", refuse) == "flag"
    assert made(id="header.x-id", honest_repeats=["*"]).repeat_policy("x/y", refuse) == "flag"
    assert made(id="header.x-id", honest_repeats=["x:*"]).repeat_policy("x:y", refuse) == "flag"
    assert made(id="header.x-id", honest_repeats=["x:*"]).repeat_policy("y:x", refuse) is refuse
    assert made(id="header.x-id", repeat_guard=False).repeat_policy("a", refuse) is None
    assert made(id="json.id").repeat_policy("a", refuse) is None
    assert made(id="digest").repeat_policy("a", refuse) is None
    assert made(id="uuid").repeat_policy("a", refuse) is refuse
    assert made(id="header.x-id", signed="{id}.{body}").repeat_policy("a", refuse) is None


def test_where_the_body_is_not_signed_what_is_must_not_come_again() -> None:
    """Joined fields can be cut apart elsewhere: the same text, and another id."""
    joined = made(id="json.id", signed="{json.id}:{json.note}")
    assert joined.repeat_policy("a", RepeatPolicy.REFUSE) is RepeatPolicy.REFUSE
    assert joined.proof is not None
    one = joined.proof(Incoming({}, b'{"id": "1", "note": "2:3"}'))
    assert one == joined.proof(Incoming({}, b'{"id": "1:2", "note": "3"}')) == b"1:2:3"
    assert PROVIDERS_HERE["form"].proof is not None
    assert made(id="header.x-id").proof is None, "there the body is known by its digest"
    # Two events of one second have this in common.
    odd = made(id="json.id", signed="{json.at}")
    assert (odd.proof, odd.repeat_policy("a", RepeatPolicy.REFUSE)) == (None, None)


def test_a_segment_is_left_out_with_the_text_around_it() -> None:
    section = SECTIONS["hmac"].model_validate(
        {
            "signature": {"at": "header.x-sig"},
            "signed": "v[1];[id:{query.id};][by:{header.x-by}]{body}",
            "type": "json.t",
        }
    )
    assert isinstance(section, SignedSection)
    assert str(section.signed) == "v[1];[id:{query.id};][by:{header.x-by}]{body}"
    compose = composer(section)

    def composed(url: str, **headers: str) -> bytes:
        return compose(Looked(Incoming(headers, b"{}", "POST", url)))

    assert composed("https://x/?id=7", **{"x-by": "me\xe9"}) == b"v[1];id:7;by:me\xe9{}"
    assert composed("https://x/?id=", **{"x-by": ""}) == b"v[1];{}"
    assert composed("https://x/") == b"v[1];{}"


def test_the_header_of_a_token_is_a_credential() -> None:
    assert "authorization" in PROVIDERS_HERE["bearer"].credentials
    own = {"provider": "bearer", "scheme": {"token": {"at": "header.X-Own"}, "type": "a"}}
    provider = find_provider(own)
    assert provider is not None
    assert "x-own" in provider.credentials


def test_a_challenge_is_signed_for_nobody_but_the_sender() -> None:
    """Zoom's could be the signed text of an event: who has it signed has forged that event."""
    zoom, key = PROVIDERS["zoom"], b"s" * 32
    text = f"v0:{int(NOW.timestamp())}:" + '{"event":"meeting.ended"}'
    asked = {"event": "endpoint.url_validation", "payload": {"plainToken": text}}
    incoming = Incoming({}, json.dumps(asked).encode())
    assert zoom.greet is not None
    greeting = zoom.greet(incoming, key=key)
    assert greeting is not None
    assert hmac.digest(key, text.encode(), "sha256").hex().encode() in greeting.body
    for nobody in (None, PROVIDERS_HERE["ed25519"].read_key(SECRETS["ed25519"].encode())):
        with pytest.raises(BadSignature):
            zoom.greet(incoming, key=nobody)


def test_a_key_does_not_show_itself() -> None:
    for name in ("ed25519", "ecdsa"):
        key = PROVIDERS_HERE[name].read_key(SECRETS[name].encode())
        assert repr(key) == "PublicKey()"


def test_a_time_far_ahead_is_refused() -> None:
    with pytest.raises(RequestRejected):
        accept("pairs", REQUESTS["pairs"], now=NOW - timedelta(days=3650))


def test_signed_json_cannot_be_passed_off_as_a_form() -> None:
    """Its header is signed by nobody, and a stranger's text may stand in the body."""
    inner = '{"event_id":"forged","type":"admin_added"}'
    for space in (b"", b" \n"):
        text = json.dumps({"event_id": "E1", "type": "message", "text": f"=&payload={inner}&x="})
        body = space + text.encode()
        incoming = Incoming({"content-type": "application/x-www-form-urlencoded"}, body)
        envelope = PROVIDERS["slack"].read(incoming)
        assert (envelope.id, envelope.type) == ("E1", "message")
        assert read_payload(incoming.headers, incoming.body)["event_id"] == "E1"


def test_the_fields_of_a_form_are_its_payload() -> None:
    headers = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    assert read_payload(headers, b"Sid=S1&Body=a%20b&Empty=") == {
        "Sid": "S1",
        "Body": "a b",
        "Empty": "",
    }
    assert read_payload(headers, b'payload={"a":1}') == {"a": 1}
    for odd in (b"", b"payload=1&payload=2", b"&" * 300, b"\xff=1"):
        with pytest.raises(ValueError, match=r"form|field|utf-8"):
            read_payload(headers, odd)


def test_senders_that_are_described_alike_are_the_same() -> None:
    assert made(id="json.id") == made(id="json.id")
    assert made(id="json.id") != made(id="json.other")


def test_of_most_senders_any_type_may_be_handled() -> None:
    check_known("slack", "app_mention", force=False)
    check_known("hmac", "order.paid", force=False)
