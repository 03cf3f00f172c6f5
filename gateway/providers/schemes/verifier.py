"""Verification of a described scheme: compiled once, pure, and closed to all that is odd."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote, urlsplit

from gateway.errors import BadPayload, BadSignature, StaleTimestamp
from gateway.providers.provider import Incoming, Key, Verified, Verify
from gateway.providers.schemes.keys import PublicKey, decode_strictly
from gateway.providers.schemes.moments import parse_moment
from gateway.providers.schemes.places import Looked, Reader, is_form
from gateway.providers.schemes.sections import (
    TOLERANCE,
    HmacSection,
    ItemSection,
    SignedSection,
)
from gateway.providers.schemes.template import Part
from gateway.providers.signature import NO_MATCH

MOST_SIGNATURES: Final = 16
MOST_CHARS: Final = 4096

Split = Callable[[Incoming], Sequence[Incoming]]
Compose = Callable[[Looked], bytes]


def encode(digest: bytes, encoding: str) -> bytes:
    """A signature as it is written."""
    if encoding == "hex":
        return digest.hex().encode()
    if encoding == "base64url":
        return base64.urlsafe_b64encode(digest).rstrip(b"=")
    return base64.b64encode(digest)


def items_reader(section: ItemSection, *, most: int | None = None) -> Callable[[Looked], list[str]]:
    """The values in those places that are there, or in the first so many of them."""
    readers = [place.reader() for place in section.at]
    separator, field = section.separator, section.field
    names = ", ".join(place.name for place in section.at)

    def read_all(looked: Looked) -> list[str]:
        texts = [text for reader in readers if (text := reader(looked)) is not None][:most]
        _check_texts(texts, names)
        if separator is None:
            return texts
        return [item for text in texts for item in text.split(separator)]

    if field is None:
        return read_all

    def read_field(looked: Looked) -> list[str]:
        # Time and signatures are mostly in one place, which is taken apart once.
        pairs = looked.pairs.get(names)
        if pairs is None:
            pairs = looked.pairs[names] = _pairs(read_all(looked), names)
        return pairs.get(field, [])

    return read_field


def _check_texts(texts: Sequence[str], names: str) -> None:
    if not texts:
        raise BadSignature(f"no {names}")
    for text in texts:
        if len(text) > MOST_CHARS or not text.isascii():
            raise BadSignature(f"{names}: too long, or not ASCII")


def _pairs(items: Sequence[str], names: str) -> dict[str, list[str]]:
    pairs: dict[str, list[str]] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise BadSignature(f"{names}: an item is not name=value")
        pairs.setdefault(name, []).append(value)
    return pairs


def signatures_reader(
    section: ItemSection, prefix: str, *, is_only: bool
) -> Callable[[Looked], list[bytes]]:
    """The signatures of one scheme; those with another prefix are ignored, against downgrades."""
    read_items = items_reader(section)
    names = ", ".join(place.name for place in section.at)
    start = len(prefix)

    def read(looked: Looked) -> list[bytes]:
        found = [item[start:].encode() for item in read_items(looked) if item.startswith(prefix)]
        if len(found) > MOST_SIGNATURES or (is_only and not found):
            raise BadSignature(f"{names}: {len(found)} signatures; expected 1 to {MOST_SIGNATURES}")
        return found

    return read


def time_reader(section: SignedSection) -> Reader | None:
    """The one time of signing, as it is written."""
    if section.timestamp is None:
        return None
    read_items = items_reader(section.timestamp, most=1)
    names = ", ".join(place.name for place in section.timestamp.at)

    def read(looked: Looked) -> str:
        if looked.moment is None:  # read once, to be signed and to be compared
            found = read_items(looked)
            if len(found) != 1:
                raise BadSignature(f"{names}: {len(found)} timestamps; expected one")
            looked.moment = found[0]
        return looked.moment

    return read


def composer(section: SignedSection) -> Compose:
    """The bytes that are signed, from a request."""
    pieces = [
        piece.encode() if isinstance(piece, str) else _filler(piece, section)
        for piece in section.signed.pieces
    ]
    if len(pieces) == 1 and not isinstance(pieces[0], bytes):
        return pieces[0]

    def compose(looked: Looked) -> bytes:
        return b"".join([piece if isinstance(piece, bytes) else piece(looked) for piece in pieces])

    return compose


def _filler(part: Part, section: SignedSection) -> Compose:
    match part.word:
        case "body":
            return lambda looked: looked.body
        case "method":
            return lambda looked: looked.incoming.method.encode("ascii", "replace")
        case "url":
            return _url(section.url_decodes or "")
        case "path":
            return lambda looked: urlsplit(looked.incoming.url).path.encode("utf-8", "replace")
        case "params":
            return _params
        case "timestamp":
            return _required(time_reader(section), "timestamp")
        case "id":
            readers = [choice.reader() for choice in section.id]
            return _required(lambda looked: _first(readers, looked), "id")
    reader = None if part.place is None else part.place.reader()
    if part.is_optional and reader is not None:
        return lambda looked: (reader(looked) or "").encode("utf-8", "replace")
    encoding = "latin-1" if part.place is not None and part.place.source == "header" else "utf-8"
    return _required(reader, part.word, encoding)


def _first(readers: Sequence[Reader], looked: Looked) -> str | None:
    return next((text for read in readers if (text := read(looked)) is not None), None)


def _required(reader: Reader | None, name: str, encoding: str = "latin-1") -> Compose:
    def fill(looked: Looked) -> bytes:
        text = None if reader is None else reader(looked)
        if text is None:
            raise BadSignature(f"no {name}, which is part of what is signed")
        return text.encode(encoding, "replace")

    return fill


def _url(decoded: str) -> Compose:
    if not decoded:
        return lambda looked: looked.incoming.url.encode("utf-8", "replace")
    codes = {quote(char, safe=""): char for char in decoded}

    def fill(looked: Looked) -> bytes:
        url = looked.incoming.url
        for code, char in codes.items():
            url = url.replace(code, char).replace(code.lower(), char)
        return url.encode("utf-8", "replace")

    return fill


def _params(looked: Looked) -> bytes:
    """Names and values of a form, sorted and joined, each pair once.

    https://www.twilio.com/docs/usage/security#validating-requests
    """
    pairs = sorted(set(looked.form_fields))
    return "".join(name + value for name, value in pairs).encode("utf-8", "replace")


def hmac_matcher(section: HmacSection) -> Callable[[bytes, Sequence[bytes], bytes], bool]:
    """Whether one of the signatures is that of the message under a key."""
    algorithm, encoding = section.algorithm, section.signature.encoding
    is_hex = encoding == "hex"

    def matches(message: bytes, signatures: Sequence[bytes], key: bytes) -> bool:
        # Anyone can sign with an empty key, so an unset variable must never open the door.
        if not key.strip():
            return False
        digest = hmac.digest(key, message, algorithm)
        # Compared as it is written, so that re-encodings are refused.
        expected = digest.hex().encode() if is_hex else encode(digest, encoding)
        return True in [hmac.compare_digest(expected, signature) for signature in signatures]

    return matches


def public_matches(
    message: bytes, signatures: Sequence[bytes], key: PublicKey, encoding: str
) -> bool:
    """The same for a public key."""
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
    """The verification of one scheme."""
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
            index = _check_each(check, _unverified(each, incoming), keys)
        if check_body is not None:
            check_body(looked)
        if read_time is None:
            return Verified(index)
        # A time in a body that is signed as a whole is read only now.
        text = read_time(looked if is_time_read else Looked(incoming))
        signed_at_s = parse_moment(text or "", unit)
        if signed_at_s is None:
            raise BadSignature(f"the timestamp is not {unit}")
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


def _unverified(split: Split, incoming: Incoming) -> Sequence[Incoming]:
    try:
        return split(incoming)
    except BadPayload as error:
        raise BadSignature(error.reason) from None


def _check_each(check: Check, items: Sequence[Incoming], keys: Sequence[Key]) -> int:
    if not items:
        raise BadSignature("no item, and so no signature")
    found = [check(Looked(item, is_verified=False), keys) for item in items]
    return found[0]


def _body_check(read: Reader) -> Callable[[Looked], None]:
    def check(looked: Looked) -> None:
        hashed = read(looked)
        # A form is signed by its fields. But a request with a hash is no form, whatever its header
        # says, which nobody signs: else its body could be changed for one without any fields.
        if hashed is None and is_form(looked.headers):
            return
        told = (hashed or "").encode("utf-8", "replace")
        if not hmac.compare_digest(hashlib.sha256(looked.body).hexdigest().encode(), told):
            raise BadSignature("the body is not the one whose hash is signed")

    return check


def _check_time(signed_at_s: float, now: datetime, tolerance: timedelta) -> None:
    """In both directions: a far-future time would keep a captured request valid for years."""
    age_s = now.timestamp() - signed_at_s
    if abs(age_s) > tolerance.total_seconds():
        side = "ago" if age_s > 0 else "ahead"
        raise StaleTimestamp(
            f"signed {abs(age_s):.0f} s {side}; the tolerance is {tolerance.total_seconds():.0f} s"
        )
