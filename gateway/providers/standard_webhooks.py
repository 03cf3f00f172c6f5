"""Standard Webhooks, the sending side: keys, signatures and headers.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
import hmac
from collections.abc import Sequence
from typing import Final

from gateway.base.problems import Unexpected

PREFIX: Final = "whsec_"
FEWEST_KEY_BYTES: Final = 24
MOST_KEY_BYTES: Final = 64
KEY_EXPECTED: Final = (
    f"{PREFIX} and the base64 of {FEWEST_KEY_BYTES} to {MOST_KEY_BYTES} random bytes, such as"
    f" {PREFIX}$(openssl rand -base64 32)"
)


class KeyMalformed(Unexpected):
    """The text is not a signing key. Neither `found` nor `expected` shows any part of it."""


def parse_key(text: str) -> bytes:
    """Return the key bytes. Raises KeyMalformed."""
    if not text.startswith(PREFIX):
        raise KeyMalformed(found=f"a key without {PREFIX} (not shown)", expected=KEY_EXPECTED)
    key = _decode(text.removeprefix(PREFIX))
    if key is None:
        raise KeyMalformed(found="a key that is not base64 (not shown)", expected=KEY_EXPECTED)
    if not FEWEST_KEY_BYTES <= len(key) <= MOST_KEY_BYTES:
        raise KeyMalformed(found=f"a key of {len(key)} bytes", expected=KEY_EXPECTED)
    return key


def _decode(text: str) -> bytes | None:
    """Decode base64.

    Return None for text that a receiver's library would decode differently: other
    alphabets, or no padding.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        return None


def sign(id: str, timestamp: int, body: bytes, keys: Sequence[bytes]) -> str:
    """Return one signature per key, so that a receiver can rotate keys."""
    message = b"%b.%d.%b" % (id.encode(), timestamp, body)
    digests = (hmac.digest(key, message, "sha256") for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def headers(id: str, timestamp: int, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """Return the headers to send with the body. Without a key they are unsigned.

    The id must be the same at every attempt, and must not contain `.`, which
    separates the signed parts.
    """
    named = {"webhook-id": id, "webhook-timestamp": str(timestamp)}
    return named | ({"webhook-signature": sign(id, timestamp, body, keys)} if keys else {})
