"""Sealed bytes: what opens them, what does not, and what is said about it."""

import base64
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.errors import KeyMissing, SealBroken
from gateway.base.secrets import Secret, SecretRef, SecretUnusable
from gateway.privacy.encryption import OVERHEAD_BYTES, KeyRing, key_id, read_key, sealed_under

OLD, NEW = Secret(os.urandom(32)), Secret(os.urandom(32))
ROW = ("processed_events", "stripe", "evt_1")
REF = SecretRef.parse("env:GATEWAY_KEY")


@given(st.binary(max_size=500), st.lists(st.text(st.characters(codec="utf-8"), max_size=20)))
def test_what_is_sealed_for_a_row_is_opened_for_it(plaintext: bytes, identity: list[str]) -> None:
    ring = KeyRing([NEW])
    sealed = ring.seal(plaintext, identity)
    assert ring.open(sealed, identity) == plaintext
    assert len(sealed) == len(plaintext) + OVERHEAD_BYTES


def test_the_first_key_seals_and_all_of_them_open() -> None:
    before = KeyRing([OLD]).seal(b"body", ROW)
    both = KeyRing([NEW, OLD])
    assert both.open(before, ROW) == b"body"
    assert sealed_under(both.seal(b"body", ROW)) == key_id(NEW) == both.first
    assert both.ids == (key_id(NEW), key_id(OLD))


def test_no_two_seals_of_the_same_bytes_are_alike() -> None:
    ring = KeyRing([NEW])
    assert len({ring.seal(b"body", ROW) for _ in range(100)}) == 100


def test_a_key_that_is_not_in_the_ring_is_named_with_what_to_do() -> None:
    sealed = KeyRing([OLD]).seal(b"body", ROW)
    with pytest.raises(KeyMissing, match=rf"{key_id(OLD)}.*not among `keys`.*put that key back"):
        KeyRing([NEW]).open(sealed, ROW)


@pytest.mark.parametrize(
    "other",
    [
        ("processed_events", "stripe", "evt_2"),
        ("processed_events", "github", "evt_1"),
        ("effects", "stripe", "evt_1"),
        ("processed_events", "stripeevt_1", ""),
        ("processed_events", "stripe"),
    ],
)
def test_what_was_sealed_for_one_row_opens_in_no_other(other: tuple[str, ...]) -> None:
    ring = KeyRing([NEW])
    with pytest.raises(SealBroken, match="moved here from another"):
        ring.open(ring.seal(b"body", ROW), other)


def test_no_byte_of_it_can_be_changed_or_cut_off() -> None:
    ring = KeyRing([NEW])
    sealed = ring.seal(b"body of some bytes", ROW)
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises((SealBroken, KeyMissing)):
            ring.open(bytes(changed), ROW)
        with pytest.raises((SealBroken, KeyMissing)):
            ring.open(sealed[:place], ROW)


def test_digests_are_the_same_under_every_key_and_differ_by_the_digest_key() -> None:
    assert KeyRing([OLD]).digest("key", "a") == KeyRing([NEW, OLD]).digest("key", "a")
    assert KeyRing([OLD]).digest("key", "a") != KeyRing([OLD], NEW).digest("key", "a")
    assert KeyRing([OLD]).digest("ab", "c") != KeyRing([OLD]).digest("a", "bc")
    assert KeyRing([OLD]).digest_text("key", "a").startswith("digest:")


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode, bytes.hex])
def test_a_key_is_read_as_base64_or_hex(encode: object) -> None:
    text = encode(OLD.reveal())  # type: ignore[operator]  # one of three
    raw = text.encode() if isinstance(text, str) else text
    assert read_key(REF, raw) == OLD
    assert read_key(REF, raw.rstrip(b"=")) == OLD


@pytest.mark.parametrize(
    "text",
    [b"secret", b"x" * 32, b"0123456789abcdef" * 3, base64.b64encode(b"x" * 33), b"ab" * 32],
)
def test_what_is_no_key_is_refused_and_not_shown(text: bytes) -> None:
    with pytest.raises(SecretUnusable) as refused:
        read_key(REF, text)
    assert text.decode() not in str(refused.value)
    assert "openssl rand" in str(refused.value)


def test_nothing_of_a_key_is_in_what_names_the_ring() -> None:
    assert OLD.reveal().hex() not in repr(KeyRing([OLD]))
    assert key_id(OLD) not in OLD.reveal().hex()
    with pytest.raises(LookupError):
        KeyRing().seal(b"", ROW)
