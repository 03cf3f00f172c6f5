"""Every entry of the catalogue verifies what its vendor's own code signs, and nothing else."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from gateway.errors import BadPayload, BadSignature, RequestRejected
from gateway.model import Envelope
from gateway.providers import PROVIDERS, Incoming, Provider
from gateway.providers.entries import entry_names
from gateway.providers.provider import Greeting, Integrity
from gateway.providers.schemes.sections import KINDS

VECTORS = Path(__file__).parents[1] / "vectors"
NAMES = sorted(entry_names())


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A request that somebody else's code has signed."""

    provider: Provider
    incoming: Incoming
    secret: bytes
    at: datetime
    events: list[dict[str, Any]] | None
    """None where the published body is no event; none of them in a handshake."""
    answer: dict[str, Any] | None

    def verify(self, incoming: Incoming | None = None, *, secret: bytes | None = None) -> int:
        key = self.provider.read_key(self.secret if secret is None else secret)
        return self.provider.verify(
            incoming or self.incoming, keys=[key], now=self.at, tolerance=self.provider.tolerance
        ).key

    def read(self, incoming: Incoming | None = None) -> list[Envelope]:
        request = incoming or self.incoming
        split = self.provider.split
        return [
            self.provider.read(item) for item in ([request] if split is None else split(request))
        ]


def load(path: Path) -> Vector:
    told = json.loads(path.read_text())
    body = base64.b64decode(told["body_base64"]) if "body_base64" in told else told["body"].encode()
    headers = {name.lower(): value for name, value in told["headers"].items()}
    return Vector(
        provider=PROVIDERS[path.parent.name],
        incoming=Incoming(headers, body, told.get("method", "POST"), told.get("url", "")),
        secret=told["secret"].encode(),
        at=datetime.fromisoformat(told["at"]),
        events=told["events"],
        answer=told.get("answer"),
    )


FILES = [
    path
    for path in sorted(VECTORS.glob("*/*.json"))
    if path.parent.name in PROVIDERS and not PROVIDERS[path.parent.name].is_queue
]
POSTS = [path for path in FILES if json.loads(path.read_text()).get("method", "POST") == "POST"]


@pytest.fixture(params=POSTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def vector(request: pytest.FixtureRequest) -> Vector:
    return load(request.param)


def changes(original: bytes) -> Iterator[bytes]:
    """The bytes with each in turn changed, left out, or doubled."""
    for index, byte in enumerate(original):
        before, after = original[:index], original[index + 1 :]
        yield before + bytes([byte ^ 1]) + after
        yield before + after
        yield before + bytes([byte, byte]) + after


def test_what_the_vendors_code_signs_is_verified_and_read(vector: Vector) -> None:
    assert vector.verify() == 0
    if vector.events:
        read = vector.read()
        assert len(read) == len(vector.events)
        for envelope, event in zip(read, vector.events, strict=True):
            assert envelope.type == event["type"]
            assert event["id"] in (None, envelope.id)


def test_a_handshake_is_answered_as_the_vendors_code_wants_it(vector: Vector) -> None:
    greet = vector.provider.greet
    key = vector.provider.read_key(vector.secret)
    greeting = None if greet is None else greet(vector.incoming, key=key)
    if vector.events != []:
        assert greeting is None
        return
    assert isinstance(greeting, Greeting)
    assert vector.answer is not None
    assert greeting.status == vector.answer["status"]
    if "body" in vector.answer:
        assert greeting.body.decode() == vector.answer["body"]


def test_every_change_to_a_body_that_is_signed_is_refused(vector: Vector) -> None:
    if vector.provider.integrity is not Integrity.WHOLE:
        pytest.skip("not all of the body is signed, and the entry says so")
    for body in changes(vector.incoming.body):
        if body != vector.incoming.body:
            with pytest.raises(BadSignature):
                vector.verify(vector.incoming._replace(body=body))


def test_every_change_to_a_header_that_proves_is_refused_or_changes_nothing(vector: Vector) -> None:
    """A header that is neither signed nor a signature may change: it must then change nothing but
    what the entry calls unsigned."""
    facts = vector.provider.facts
    assert facts is not None
    for name, value in vector.incoming.headers.items():
        for changed in changes(value.encode("latin-1")):
            headers = {**vector.incoming.headers, name: changed.decode("latin-1")}
            incoming = vector.incoming._replace(headers=headers)
            if changed.decode("latin-1") == value:
                continue
            try:
                vector.verify(incoming)
                after = vector.read(incoming) if vector.events else []
            except RequestRejected:
                continue
            before = vector.read() if vector.events else []
            for old, new in zip(before, after, strict=True):
                assert old.id == new.id or "id" in facts.unsigned, name
                assert old.type == new.type or "type" in facts.unsigned, name


def test_a_request_without_one_of_its_headers_is_refused_or_unharmed(vector: Vector) -> None:
    if vector.provider.integrity is not Integrity.PART:
        with pytest.raises(BadSignature):
            vector.verify(vector.incoming._replace(headers={}))


def test_another_secret_is_refused(vector: Vector) -> None:
    with pytest.raises(BadSignature):
        vector.verify(secret=vector.provider.make_secret().encode())


def test_a_request_that_is_too_old_or_too_new_is_refused(vector: Vector) -> None:
    tolerance = vector.provider.tolerance
    if tolerance is None:
        return
    key = vector.provider.read_key(vector.secret)
    for now in (vector.at + tolerance, vector.at - tolerance):
        side = timedelta(seconds=2) if now > vector.at else timedelta(seconds=-2)
        with pytest.raises(RequestRejected):
            vector.provider.verify(vector.incoming, keys=[key], now=now + side, tolerance=tolerance)


def test_our_own_signature_verifies_too(vector: Vector) -> None:
    provider = vector.provider
    secret = provider.make_secret().encode()
    event = (vector.events or [{"id": "1", "type": "ping"}])[0]
    signed = provider.sign(
        vector.incoming.body,
        secret=secret,
        id=event["id"] or "evt_1",
        type=event["type"],
        now=vector.at,
        url=vector.incoming.url,
    )
    headers = {**signed.headers, "content-type": vector.incoming.headers.get("content-type", "")}
    incoming = Incoming(headers, signed.body, "POST", signed.url)
    assert vector.verify(incoming, secret=secret) == 0


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_whole(name: str) -> None:
    provider = PROVIDERS[name]
    facts = provider.facts
    assert provider.name == name
    assert facts is not None
    assert facts.docs
    assert all(page.startswith("https://") for page in facts.docs)
    has_vector = any(path.parent.name == name for path in FILES)
    assert facts.vector.startswith("none: ") is not has_vector, "has a vector, or says why not"


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_refuses_what_nobody_signed(name: str) -> None:
    provider = PROVIDERS[name]
    key = provider.read_key(provider.make_secret().encode())
    now = datetime(2026, 11, 16, tzinfo=UTC)
    for body in (b"", b"{}", b"[]", b"\xff", b"a=1"):
        with pytest.raises((BadSignature, BadPayload)):
            provider.verify(Incoming({}, body), keys=[key], now=now, tolerance=None)


def test_no_entry_has_the_name_of_a_kind() -> None:
    assert not set(KINDS) & set(PROVIDERS)


def test_a_public_key_is_enough_to_verify() -> None:
    provider = PROVIDERS["standard-webhooks"]
    private = serialization.load_der_private_key(
        base64.b64decode("MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"), None
    )
    public = private.public_key().public_bytes_raw()  # type: ignore[union-attr]  # it is Ed25519
    now = datetime.fromtimestamp(1614265330, UTC)
    seed = base64.b64encode(bytes(range(32))).decode()
    signed = provider.sign(
        b'{"test": 2432232314}',
        secret=f"whsk_{seed}".encode(),
        id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        type="test",
        now=now,
    )
    key = provider.read_key(b"whpk_" + base64.b64encode(public))
    incoming = Incoming(signed.headers, signed.body)
    assert provider.verify(incoming, keys=[key], now=now, tolerance=None).key == 0
