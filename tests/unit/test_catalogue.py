"""Every entry of the catalogue verifies what its vendor's own code signs, and nothing else."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gateway.base.errors import BadPayload, BadSignature, RequestRejected
from gateway.base.model import Envelope
from gateway.providers import PROVIDERS, Incoming, Provider
from gateway.providers.entries import entry_names, read_scheme
from gateway.providers.provider import Integrity, Key
from gateway.providers.schemes.batch import items_reader
from gateway.providers.schemes.keys import PublicKey
from gateway.providers.schemes.places import Looked, ValuePlace, dig
from gateway.providers.schemes.planting import plant
from gateway.providers.schemes.sections import (
    KINDS,
    BearerSection,
    SenderSection,
    SignedSection,
)

VECTORS = Path(__file__).parents[1] / "vectors"
NAMES = sorted(entry_names())
FILES = sorted(VECTORS.glob("*/*.json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A request that somebody else's code has signed."""

    provider: Provider
    incoming: Incoming
    secret: bytes
    private_key: bytes | None
    at: datetime
    events: list[dict[str, Any]] | None
    answer: dict[str, Any]

    @property
    def key(self) -> Key:
        return self.provider.read_key(self.secret)

    @property
    def scheme(self) -> SignedSection:
        """As the entry says it."""
        scheme = read_scheme(self.provider.name)
        assert isinstance(scheme, SignedSection)
        return scheme

    def verify(self, incoming: Incoming | None = None, *, key: Key | None = None) -> int:
        return self.provider.verify(
            incoming or self.incoming,
            keys=[self.key if key is None else key],
            now=self.at,
            tolerance=self.provider.tolerance,
        ).key

    def is_refused(self, incoming: Incoming) -> bool:
        try:
            self.verify(incoming)
        except RequestRejected:
            return True
        return False

    def items(self, incoming: Incoming | None = None) -> list[Incoming]:
        request = incoming or self.incoming
        split = self.provider.split
        return [request] if split is None else list(split(request))

    def read(self, incoming: Incoming | None = None) -> list[Envelope]:
        return [self.provider.read(item) for item in self.items(incoming)]


def load(path: Path) -> Vector:
    told = json.loads(path.read_bytes())
    body = base64.b64decode(told["body_base64"]) if "body_base64" in told else told["body"].encode()
    private_key = told.get("private_key")
    return Vector(
        provider=PROVIDERS[path.parent.name],
        incoming=Incoming(told["headers"], body, told["method"], told["url"]),
        secret=told["secret"].encode(),
        private_key=None if private_key is None else private_key.encode(),
        at=datetime.fromisoformat(told["at"]),
        events=told["events"],
        answer=told.get("answer", {}),
    )


def is_refusal(path: Path) -> bool:
    return bool(json.loads(path.read_bytes()).get("answer", {}).get("status", 200) >= 400)


def is_get(path: Path) -> bool:
    return bool(json.loads(path.read_bytes())["method"] == "GET")


def is_unverified(path: Path) -> bool:
    return bool(json.loads(path.read_bytes()).get("unverified", False))


UNVERIFIED = [path for path in FILES if is_unverified(path)]
SIGNED = [
    path for path in FILES if not is_refusal(path) and not is_get(path) and not is_unverified(path)
]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.fixture
def vector(request: pytest.FixtureRequest) -> Vector:
    return load(request.param)


def over(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", paths, ids=name_of, indirect=True)


def provider_of(path: Path) -> Provider:
    return PROVIDERS[path.parent.name]


def scheme_of(path: Path) -> SenderSection | None:
    """As its entry says it; none of those that are no entries."""
    return read_scheme(path.parent.name) if path.parent.name in NAMES else None


# What is covered stands in the entries, and is not repeated here.
WHOLE = [path for path in SIGNED if provider_of(path).integrity is Integrity.WHOLE]
TIMED = [path for path in SIGNED if provider_of(path).tolerance is not None]
DESCRIBED = [path for path in SIGNED if isinstance(scheme_of(path), SignedSection)]
WITH_PRIVATE_KEY = [path for path in SIGNED if b'"private_key"' in path.read_bytes()]


def others(original: bytes) -> Iterator[bytes]:
    """The bytes with each in turn made another."""
    for index, byte in enumerate(original):
        yield original[:index] + bytes([byte ^ 1]) + original[index + 1 :]


def neighbours(original: bytes) -> Iterator[bytes]:
    """The same, and the next one up: in base64, that can be a spare bit and nothing else."""
    yield from others(original)
    for index, byte in enumerate(original):
        yield original[:index] + bytes([(byte + 1) % 128]) + original[index + 1 :]


def changes(original: bytes) -> Iterator[bytes]:
    """The same, and with each in turn left out or doubled; never what it was."""
    yield from others(original)
    for index, byte in enumerate(original):
        before, after = original[:index], original[index + 1 :]
        yield before + after
        yield before + bytes([byte, byte]) + after
    yield original + b" "
    yield b" " + original


@over(SIGNED)
def test_what_the_vendors_code_signs_is_verified_and_read(vector: Vector) -> None:
    assert vector.verify() == 0
    if vector.events is None or vector.events == []:
        return
    items = vector.items()
    assert len(items) == len(vector.events)
    for item, event in zip(items, vector.events, strict=True):
        envelope = vector.provider.read(item)
        assert envelope.type == event["type"]
        assert envelope.id == (event["id"] or hashlib.sha256(item.body).hexdigest())


@over(UNVERIFIED)
def test_a_handshake_that_the_secret_does_not_prove_is_answered(vector: Vector) -> None:
    with pytest.raises(BadSignature):
        vector.verify()
    greet = vector.provider.greet_unverified
    assert greet is not None
    greeting = greet(vector.incoming, now=vector.at)
    assert greeting is not None
    assert greeting.status == vector.answer["status"]
    assert greeting.body.decode() == vector.answer["body"]


@over(SIGNED)
def test_an_event_is_no_handshake_that_needs_no_secret(vector: Vector) -> None:
    greet = vector.provider.greet_unverified
    assert greet is None or greet(vector.incoming, now=vector.at) is None


@over(SIGNED)
def test_a_handshake_is_answered_and_is_no_event(vector: Vector) -> None:
    greet = vector.provider.greet
    greeting = None if greet is None else greet(vector.incoming, key=vector.key)
    if vector.events != []:
        assert greeting is None
    elif greeting is None:
        assert vector.items() == []  # an empty batch, which is taken as any other
        assert vector.provider.acknowledgement.status == vector.answer["status"]
    else:
        assert greeting.status == vector.answer["status"]
        assert greeting.body.decode() == vector.answer.get("body", "")


@over([path for path in SIGNED if b'"answer"' in path.read_bytes()])
def test_an_event_is_acknowledged_as_its_sender_wants_it(vector: Vector) -> None:
    if vector.events and vector.answer:
        told = vector.provider.acknowledgement
        assert told.status == vector.answer["status"]
        assert told.body == vector.answer["body"].encode()


@pytest.mark.parametrize("path", [path for path in FILES if is_refusal(path)], ids=name_of)
def test_what_is_signed_wrongly_on_purpose_gets_the_status_that_is_asked_for(path: Path) -> None:
    vector = load(path)
    with pytest.raises(BadSignature):
        vector.verify()
    assert vector.provider.refusal_status == vector.answer["status"]


@pytest.mark.parametrize("path", [path for path in FILES if is_get(path)], ids=name_of)
def test_a_handshake_by_get_is_answered_to_who_knows_the_token(path: Path) -> None:
    vector = load(path)
    greet = vector.provider.greet_by_get
    assert greet is not None
    greeting = greet(vector.incoming, key=vector.secret)
    assert greeting is not None
    assert greeting.status == vector.answer["status"]
    assert greeting.body.decode() == vector.answer["body"]
    for token in (b"another", b""):
        refused = greet(vector.incoming, key=token)
        assert refused is not None
        assert refused.status == 403
        assert refused.body == b""


@over(WHOLE)
def test_every_change_to_a_body_that_is_signed_is_refused(vector: Vector) -> None:
    # A public key takes its time, and does not care how the bytes were changed.
    change = others if isinstance(vector.key, PublicKey) else changes
    for body in change(vector.incoming.body):
        if body != vector.incoming.body:
            with pytest.raises(BadSignature):
                vector.verify(vector.incoming._replace(body=body))


@over(DESCRIBED)
def test_every_change_to_a_part_that_is_signed_is_refused(vector: Vector) -> None:
    """Also where the body is not, or not as a whole: time, id, URL, and fields of the body."""
    scheme = vector.scheme
    for place in signed_places(scheme):
        if place in scheme.signature.at and has_several(vector, scheme):
            continue  # in one header with signatures of which any one is enough
        for incoming in with_another(place, vector.incoming, scheme):
            assert vector.is_refused(incoming), place
    if scheme.signed.has("url"):
        for changed in others(vector.incoming.url.encode()):
            url = changed.decode("latin-1")
            assert vector.is_refused(vector.incoming._replace(url=url)), url
    if scheme.signed.has("method"):
        assert vector.is_refused(vector.incoming._replace(method="PUT"))
    if scheme.signed.has("params") or scheme.body_hash is not None:
        for body in others(vector.incoming.body):
            assert vector.is_refused(vector.incoming._replace(body=body)), body


def has_several(vector: Vector, scheme: SignedSection) -> bool:
    if scheme.each:
        return False
    return len(items_reader(scheme.signature)(Looked(vector.incoming))) > 1


def signed_places(scheme: SignedSection) -> list[ValuePlace]:
    places = list(scheme.signed.places)
    if scheme.timestamp is not None:
        places += scheme.timestamp.at
    if scheme.signed.has("id"):
        places += [place for choice in scheme.id for place in choice.places]
    if scheme.body_hash is not None:
        places.append(scheme.body_hash)
    return places


def with_another(
    place: ValuePlace, incoming: Incoming, scheme: SignedSection
) -> Iterator[Incoming]:
    """The request with each character in a place made another in turn, and without it."""
    if place.source == "header" and place.name in incoming.headers:
        for value in neighbours(incoming.headers[place.name].encode("latin-1")):
            headers = {**incoming.headers, place.name: value.decode("latin-1")}
            yield incoming._replace(headers=headers)
        kept = {name: value for name, value in incoming.headers.items() if name != place.name}
        yield incoming._replace(headers=kept)
    elif place.source == "query" and f"{place.name}=" in incoming.url:
        before, name, after = incoming.url.partition(f"{place.name}=")
        sent, mark, rest = after.partition("&")
        for other in (*neighbours(sent.encode()), b""):
            yield incoming._replace(url=before + name + quote(other) + mark + rest)
    elif place.source == "json":
        yield from _with_another_in_json(place, incoming, scheme)


def _with_another_in_json(
    place: ValuePlace, incoming: Incoming, scheme: SignedSection
) -> Iterator[Incoming]:
    whole = json.loads(incoming.body)
    items = [whole]
    if isinstance(scheme.batch, ValuePlace):
        items = dig(whole, scheme.batch.keys)
    for item in items:
        value = dig(item, place.keys)
        if value is None:
            continue
        for other in neighbours(str(value).encode()):
            text = other.decode("latin-1")
            plant(
                item, place.keys, int(text) if isinstance(value, int) and text.isdigit() else text
            )
            yield incoming._replace(body=json.dumps(whole).encode())
        plant(item, place.keys, value)


@over(DESCRIBED)
def test_every_change_to_a_signature_is_refused(vector: Vector) -> None:
    scheme = vector.scheme
    if has_several(vector, scheme):
        return  # any one is enough
    for place in scheme.signature.at:
        for incoming in with_another(place, vector.incoming, scheme):
            assert vector.is_refused(incoming), place


@over(SIGNED)
def test_a_change_to_a_header_changes_nothing_but_what_is_said_to_be_unsigned(
    vector: Vector,
) -> None:
    facts = vector.provider.facts
    assert facts is not None
    if not vector.events:
        return
    before = vector.read()
    for name, value in vector.incoming.headers.items():
        for changed in changes(value.encode("latin-1")):
            headers = {**vector.incoming.headers, name: changed.decode("latin-1")}
            incoming = vector.incoming._replace(headers=headers)
            with suppress(RequestRejected):
                vector.verify(incoming)
                for old, new in zip(before, vector.read(incoming), strict=True):
                    assert old.id == new.id or "id" in facts.unsigned, name
                    assert old.type == new.type or "type" in facts.unsigned, name


@over(SIGNED)
def test_a_request_without_any_of_the_headers_that_prove_it_is_refused(vector: Vector) -> None:
    bare = vector.incoming._replace(headers={}, url=vector.incoming.url.partition("?")[0])
    name = vector.provider.name
    scheme = read_scheme(name) if name in NAMES else None
    proofs = scheme.signature.at if isinstance(scheme, SignedSection) else []
    proofs = scheme.token.at if isinstance(scheme, BearerSection) else proofs
    if proofs and proofs[0].source == "json":
        bare = bare._replace(body=b"{}")  # where the proof is in the body
    with pytest.raises(RequestRejected):
        vector.verify(bare)


@over(SIGNED)
def test_another_secret_is_refused(vector: Vector) -> None:
    another = vector.provider.read_key(vector.provider.make_secret().encode())
    with pytest.raises(BadSignature):
        vector.verify(key=another)


@over(TIMED)
def test_a_request_that_is_too_old_or_too_new_is_refused(vector: Vector) -> None:
    tolerance = vector.provider.tolerance
    assert tolerance is not None
    for apart in (tolerance + timedelta(seconds=2), -tolerance - timedelta(seconds=2)):
        with pytest.raises(RequestRejected):
            vector.provider.verify(
                vector.incoming, keys=[vector.key], now=vector.at + apart, tolerance=tolerance
            )


@over(SIGNED)
def test_what_we_sign_ourselves_verifies_too(vector: Vector) -> None:
    provider = vector.provider
    secret = vector.private_key or provider.make_secret().encode()
    event = (vector.events or [{"id": "1", "type": "ping"}])[0]
    try:
        json.loads(vector.incoming.body)
        body = vector.incoming.body
    except ValueError:
        body = b"{}"
    signed = provider.sign(
        body,
        secret=secret,
        id=event["id"] or "evt_1",
        type=event["type"],
        now=vector.at,
        url=vector.incoming.url.partition("?")[0],
    )
    incoming = Incoming(signed.headers, signed.body, "POST", signed.url)
    assert vector.verify(incoming, key=provider.read_key(secret)) == 0


@over(WITH_PRIVATE_KEY)
def test_what_the_private_key_signs_the_vendors_public_key_verifies(vector: Vector) -> None:
    assert vector.private_key is not None
    signed = vector.provider.sign(
        vector.incoming.body, secret=vector.private_key, id="evt_1", type="ping", now=vector.at
    )
    assert vector.verify(Incoming(signed.headers, signed.body, "POST", signed.url)) == 0


@pytest.mark.parametrize("body", [b"", b"&&", b"=", b"&=&"])
def test_a_body_whose_hash_is_signed_cannot_be_passed_off_as_an_empty_form(body: bytes) -> None:
    vector = load(VECTORS / "twilio" / "json.json")
    headers = {**vector.incoming.headers, "content-type": "application/x-www-form-urlencoded"}
    vector.verify(vector.incoming)
    with pytest.raises(BadSignature):
        vector.verify(vector.incoming._replace(headers=headers, body=body))


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_whole_and_says_whose_code_made_its_vector(name: str) -> None:
    provider = PROVIDERS[name]
    facts = provider.facts
    assert provider.name == name
    assert facts is not None
    assert facts.docs
    assert all(page.startswith("https://") for page in facts.docs)
    made_by = [
        json.loads(path.read_bytes())["made_by"] for path in FILES if path.parent.name == name
    ]
    assert made_by
    foreign = [made for made in made_by if not made.startswith("none: ")]
    if foreign:
        assert any(made.startswith(facts.vector) for made in foreign)
    else:
        assert facts.vector.startswith("none: ")


@pytest.mark.parametrize("name", NAMES)
def test_a_made_up_event_is_verified_and_read_as_what_it_was_made_up_for(name: str) -> None:
    provider, now = PROVIDERS[name], datetime(2026, 11, 16, tzinfo=UTC)
    assert provider.drafts is not None
    id, body = provider.drafts.make(provider.drafts.example, now)
    secret, url = provider.make_secret().encode(), f"https://gateway.example.com/webhooks/{name}"
    signed = provider.sign(
        body, secret=secret, id=id, type=provider.drafts.example, now=now, url=url
    )
    incoming = Incoming(signed.headers, signed.body, "POST", signed.url)
    key = provider.read_key(secret)
    provider.verify(incoming, keys=[key], now=now, tolerance=provider.tolerance)
    items = [incoming] if provider.split is None else provider.split(incoming)
    assert [provider.read(item).type for item in items] == [provider.drafts.example]


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_refuses_what_nobody_signed(name: str) -> None:
    provider = PROVIDERS[name]
    key = provider.read_key(provider.make_secret().encode())
    now = datetime(2026, 11, 16, tzinfo=UTC)
    for body in (b"", b"{}", b"[]", b"\xff", b"a=1"):
        with pytest.raises((BadSignature, BadPayload)):
            provider.verify(Incoming({}, body), keys=[key], now=now, tolerance=None)


def test_no_vector_is_of_a_provider_that_is_not_there() -> None:
    assert {path.parent.name for path in FILES} <= set(PROVIDERS)


def test_no_entry_has_the_name_of_a_kind() -> None:
    assert not set(KINDS) & set(PROVIDERS)
