"""The HMAC comparison that the providers share."""

import hmac
from collections.abc import Sequence
from typing import Final

from gateway.errors import BadSignature

NO_MATCH: Final = "no signature matches a secret of the route"
"""Well-formed, and by someone else: told apart from what is malformed."""

OTHERS_BEARER: Final = "not a token of the route"
"""The same of a token."""


def match_hmac(message: bytes, signatures: Sequence[bytes], keys: Sequence[bytes]) -> int:
    """The index of the first key under which one of the hex signatures signs the message."""
    for index, key in enumerate(keys):
        # Anyone can sign with an empty key, so an unset variable must never open the door.
        if not key.strip():
            continue
        # Compared as encoded text, so that upper-case hex and other re-encodings are refused, and
        # as bytes: compare_digest raises a TypeError on text that is not ASCII.
        expected = hexdigest(key, message)
        for signature in signatures:
            if hmac.compare_digest(expected, signature):
                return index
    raise BadSignature(NO_MATCH)


def hexdigest(secret: bytes, message: bytes) -> bytes:
    """The HMAC-SHA256 as lower-case hex."""
    return hmac.digest(secret, message, "sha256").hex().encode()
