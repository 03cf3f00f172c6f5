"""Verification of a described scheme: compiled once, pure, and failing closed."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from gateway.base.errors import BadPayload, BadSignature, StaleTimestamp
from gateway.base.model import is_form
from gateway.providers.provider import Incoming, Key, Verified, Verify
from gateway.providers.schemes.batch import signatures_reader, time_reader
from gateway.providers.schemes.keys import PublicKey, decode_strictly
from gateway.providers.schemes.message import composer
from gateway.providers.schemes.moments import UNIT_EXPECTED, parse_moment
from gateway.providers.schemes.places import Looked, Reader
from gateway.providers.schemes.sections import TOLERANCE, HmacSection, SignedSection
from gateway.providers.signature import NO_MATCH

Split = Callable[[Incoming], Sequence[Incoming]]


def encode(digest: bytes, encoding: str) -> bytes:
    """Encode a signature as the sender writes it."""
    if encoding == "hex":
        return digest.hex().encode()
    if encoding == "base64url":
        return base64.urlsafe_b64encode(digest).rstrip(b"=")
    return base64.b64encode(digest)


def hmac_matcher(section: HmacSection) -> Callable[[bytes, Sequence[bytes], bytes], bool]:
    """Return a function that checks whether one of the signatures is the HMAC of the message."""
    algorithm, encoding = section.algorithm, section.signature.encoding
    is_hex = encoding == "hex"

    def matches(message: bytes, signatures: Sequence[bytes], key: bytes) -> bool:
        # Anyone can sign with an empty key, so an unset variable must never verify a request.
        if not key.strip():
            return False
        digest = hmac.digest(key, message, algorithm)
        # Compare the encoded text, so that re-encodings are rejected.
        expected = digest.hex().encode() if is_hex else encode(digest, encoding)
        return True in [hmac.compare_digest(expected, signature) for signature in signatures]

    return matches


def public_matches(
    message: bytes, signatures: Sequence[bytes], key: PublicKey, encoding: str
) -> bool:
    """Whether one of the signatures is valid under the public key."""
    for written in signatures:
        signature = decode_strictly(written.decode("latin-1"), encoding)
        if (
            signature is not None
            and encode(signature, encoding) == written
            and key.verifies(signature, message)
        ):
            return True
    return False


def make_verify(section: SignedSection, split: Split | None) -> Verify:
    """Return the verify function of a scheme."""
    check = _make_check(section)
    read_time, tolerance = time_reader(section), section.tolerance or TOLERANCE
    unit = "s" if section.timestamp is None else section.timestamp.unit
    is_time_read = section.signed.has("timestamp") or any(
        place.source == "json" for place in section.signed.places
    )
    check_body = None if section.body_hash is None else _body_check(section.body_hash.reader())
    each = split if section.each else None

    def verify(
        incoming: Incoming,
        *,
        keys: Sequence[Key],
        now: datetime,
        tolerance: timedelta | None = tolerance,
    ) -> Verified:
        looked = Looked(incoming, is_verified=False)
        if each is None:
            index = check(looked, keys)
        else:
            index = _check_each(check, split_unverified(each, incoming), keys)
        if check_body is not None:
            check_body(looked)
        if read_time is None:
            return Verified(index)
        # A time inside a body that is signed as a whole is read only after verification.
        text = read_time(looked if is_time_read else Looked(incoming))
        signed_at_s = parse_moment(text or "", unit)
        if signed_at_s is None:
            raise BadSignature(f"the timestamp is not {UNIT_EXPECTED[unit]}")
        _check_time(signed_at_s, now, tolerance or section.tolerance or TOLERANCE)
        return Verified(index, signed_at_s)

    return verify


Check = Callable[[Looked, Sequence[Key]], int]


def _make_check(section: SignedSection) -> Check:
    compose = composer(section)
    variant = section.public if isinstance(section, HmacSection) else None
    prefix, encoding = section.signature.prefix or "", section.signature.encoding
    read_signatures = signatures_reader(section.signature, prefix, is_only=variant is None)
    matches = hmac_matcher(section) if isinstance(section, HmacSection) else None
    read_public = (
        read_signatures
        if variant is None
        else signatures_reader(section.signature, variant.prefix, is_only=False)
    )

    def check(looked: Looked, keys: Sequence[Key]) -> int:
        signatures = read_signatures(looked)
        message = compose(looked)
        for index, key in enumerate(keys):
            if isinstance(key, PublicKey):
                if public_matches(message, read_public(looked), key, encoding):
                    return index
            elif matches is not None and matches(message, signatures, key):
                return index
        raise BadSignature(NO_MATCH)

    return check


def split_unverified(split: Split, incoming: Incoming) -> Sequence[Incoming]:
    """Return the items of a batch that carry their own proof. Raises BadSignature."""
    try:
        items = split(incoming)
    except BadPayload as error:
        raise BadSignature(error.reason) from None
    if not items:
        raise BadSignature("no item, and so no proof")
    return items


def _check_each(check: Check, items: Sequence[Incoming], keys: Sequence[Key]) -> int:
    found = [check(Looked(item, is_verified=False), keys) for item in items]
    return found[0]


def _body_check(read: Reader) -> Callable[[Looked], None]:
    def check(looked: Looked) -> None:
        hashed = read(looked)
        # A form is signed by its fields. A request with a body hash is not treated as a
        # form, whatever its unsigned content type says. Otherwise its body could be replaced
        # by one without fields.
        if hashed is None and is_form(looked.headers, looked.body):
            return
        told = (hashed or "").encode("utf-8", "replace")
        if not hmac.compare_digest(hashlib.sha256(looked.body).hexdigest().encode(), told):
            raise BadSignature("the body is not the one whose hash is signed")

    return check


def _check_time(signed_at_s: float, now: datetime, tolerance: timedelta) -> None:
    """Check in both directions: a far-future time would keep a captured request valid for years."""
    age_s = now.timestamp() - signed_at_s
    if abs(age_s) > tolerance.total_seconds():
        side = "ago" if age_s > 0 else "ahead"
        raise StaleTimestamp(
            f"signed {abs(age_s):.0f} s {side}; the tolerance is {tolerance.total_seconds():.0f} s"
        )
