"""Verify senders that sign nothing: a shared token, or user and password. There is no integrity."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from gateway.base.errors import BadSignature
from gateway.base.problems import Unexpected
from gateway.providers.provider import Incoming, Key, Verified, Verify
from gateway.providers.schemes.places import Looked, Reader
from gateway.providers.schemes.sections import BearerSection
from gateway.providers.schemes.verifier import Split, split_unverified
from gateway.providers.signature import OTHERS_BEARER

MOST_CHARS: Final = 4096
AUTHORIZATION: Final = "authorization"
BASIC: Final = "basic "


def _digest(token: bytes) -> bytes:
    """Return a digest of fixed length, so that the comparison does not leak
    the length of the token.
    """
    return hashlib.sha256(token).digest()


def read_bearer_key(secret: bytes) -> Key:
    """Return the digest that a bearer token is compared with."""
    return b"" if not secret.strip() else _digest(secret)


def read_basic_key(secret: bytes) -> Key:
    """Return the digest that the credentials are compared with. The secret is `user:password`."""
    if b":" not in secret:
        raise Unexpected(found="a secret (not shown) without a colon", expected="user:password")
    return _digest(base64.b64encode(secret))


def make_bearer(section: BearerSection, split: Split | None) -> Verify:
    """Return a function that compares the token of a request, or of every item of a batch."""
    readers = [place.reader() for place in section.token.at]
    names = ", ".join(map(str, section.token.at))
    prefix = section.token.prefix or ""
    verify = _make_verify(lambda looked: _borne(readers, looked, prefix), names)
    return verify if split is None or not section.each else _make_verify_each(verify, split)


def _make_verify_each(verify_item: Verify, split: Split) -> Verify:
    def verify(
        incoming: Incoming, *, keys: Sequence[Key], now: datetime, tolerance: timedelta | None
    ) -> Verified:
        found = [
            verify_item(item, keys=keys, now=now, tolerance=tolerance)
            for item in split_unverified(split, incoming)
        ]
        return found[0]

    return verify


def _borne(readers: Sequence[Reader], looked: Looked, prefix: str) -> str | None:
    for read in readers:
        text = read(looked)
        if text is not None:
            return text[len(prefix) :] if text.startswith(prefix) else None
    return None


def make_basic() -> Verify:
    """Return a function that compares user and password."""

    def read(looked: Looked) -> str | None:
        text = looked.headers.get(AUTHORIZATION, "")
        return text[len(BASIC) :] if text[: len(BASIC)].lower() == BASIC else None

    return _make_verify(read, f"header.{AUTHORIZATION}")


def _make_verify(read: Callable[[Looked], str | None], names: str) -> Verify:
    def verify(
        incoming: Incoming, *, keys: Sequence[Key], now: datetime, tolerance: timedelta | None
    ) -> Verified:
        sent = read(Looked(incoming, is_verified=False))
        if not sent or len(sent) > MOST_CHARS:
            raise BadSignature(f"no token at {names}")
        digest = _digest(sent.encode("utf-8" if not sent.isascii() else "ascii", "replace"))
        found = [index for index, key in enumerate(keys) if hmac.compare_digest(digest, key)]
        if not found:
            raise BadSignature(f"{names}: {OTHERS_BEARER}")
        return Verified(found[0])

    return verify
