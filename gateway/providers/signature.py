"""HMAC-SHA256 comparison shared by the providers."""

import hmac
from collections.abc import Sequence
from typing import Final

from gateway.base.errors import BadSignature

NO_MATCH: Final = "no signature matches a secret of the route"
"""Reason for a well-formed signature that was made with another key. It distinguishes such
requests from malformed ones.
"""

OTHERS_BEARER: Final = "not a token of the route"
"""Reason for a well-formed token that does not match a secret of the route."""


def match_hmac(message: bytes, signatures: Sequence[bytes], keys: Sequence[bytes]) -> int:
    """Return the index of the first key under which one of the hex signatures is valid."""
    for index, key in enumerate(keys):
        # Anyone can sign with an empty key, so an unset variable must never verify a request.
        if not key.strip():
            continue
        # The hex text is compared, so that upper-case hex and other re-encodings are rejected. It
        # is compared as bytes because compare_digest raises a TypeError on text that is not ASCII.
        expected = hexdigest(key, message)
        for signature in signatures:
            if hmac.compare_digest(expected, signature):
                return index
    raise BadSignature(NO_MATCH)


def hexdigest(secret: bytes, message: bytes) -> bytes:
    """Return the HMAC-SHA256 in lower-case hex."""
    return hmac.digest(secret, message, "sha256").hex().encode()
