"""Bytes sealed under a key ring: AES-256-GCM, bound to the place where they are kept.

version · id of the key · nonce · ciphertext and tag. The head and the identity of the row are
authenticated data, so that what was sealed for one row opens in no other. Pure: no clock, no I/O.
"""

import base64
import hashlib
import hmac
import re
import secrets
import struct
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.errors import KeyMissing, SealBroken
from gateway.secrets import Secret, SecretRef, SecretUnusable

VERSION: Final = b"\x01"
KEY_BYTES: Final = 32
ID_BYTES: Final = 8
NONCE_BYTES: Final = 12
"""At random: after 2^32 seals under one key, two of them alike are no longer out of the question
(NIST SP 800-38D, 8.3). Long before that a key should have been replaced."""

TAG_BYTES: Final = 16
HEAD_BYTES: Final = len(VERSION) + ID_BYTES
OVERHEAD_BYTES: Final = HEAD_BYTES + NONCE_BYTES + TAG_BYTES
DIFFERENT_BYTES: Final = 12
"""Of 32 random bytes about 30 differ from each other; of a key made by hand far fewer do."""

KEY_EXPECTED: Final = "32 random bytes as base64 or hex, such as `openssl rand -base64 32` prints"
DIGEST_PREFIX: Final = "digest:"
PUBLIC_KEY: Final = b"webhook gateway digests"
"""What digests are keyed with where no `digest_key` is set: they can be compared with a guess."""

_LENGTH: Final = struct.Struct(">I")
_HEX: Final = re.compile(r"[0-9A-Fa-f]{64}")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]{43}=?|[A-Za-z0-9_-]{43}=?")


class KeyRing:
    """Keys by their ids: the first one seals, all of them open."""

    def __init__(self, keys: Sequence[Secret] = (), digest_key: Secret | None = None) -> None:
        self._keys = {key_id(key): AESGCM(key.reveal()) for key in keys}
        self._first = next(iter(self._keys), None)
        self._digest_key = PUBLIC_KEY if digest_key is None else digest_key.reveal()

    @property
    def first(self) -> str:
        """The id of the key that seals. Raises LookupError where there is none."""
        if self._first is None:
            raise LookupError("there is no key to encrypt with: set `keys` in routes.yaml")
        return self._first

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def seal(self, plaintext: bytes, identity: Sequence[str]) -> bytes:
        """Under the first key, for the row with this identity and no other."""
        head = VERSION + bytes.fromhex(self.first)
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._keys[self.first].encrypt(nonce, plaintext, head + _packed(identity))
        return head + nonce + sealed

    def open(self, sealed: bytes, identity: Sequence[str]) -> bytes:
        """Raises KeyMissing, or SealBroken where it is not what was sealed for this row."""
        head, nonce = sealed[:HEAD_BYTES], sealed[HEAD_BYTES : HEAD_BYTES + NONCE_BYTES]
        if len(sealed) < OVERHEAD_BYTES or not head.startswith(VERSION):
            raise SealBroken("it is not encrypted in a way that this version knows")
        key = self._keys.get(sealed_under(sealed))
        if key is None:
            raise KeyMissing(sealed_under(sealed))
        try:
            return key.decrypt(
                nonce, memoryview(sealed)[HEAD_BYTES + NONCE_BYTES :], head + _packed(identity)
            )
        except InvalidTag:
            raise SealBroken(
                "what is stored is not what was encrypted for this row: "
                "it was changed, or moved here from another one"
            ) from None

    def digest(self, *parts: str | bytes) -> bytes:
        """What can be compared with, and not read; the same under every key of the ring."""
        return hmac.digest(self._digest_key, _packed(parts), "sha256")

    def digest_text(self, *parts: str | bytes) -> str:
        """The same as text, which says what it is."""
        return DIGEST_PREFIX + base64.urlsafe_b64encode(self.digest(*parts)).decode().rstrip("=")

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._keys)})"


def sealed_under(sealed: bytes) -> str:
    """The id of the key, as the bytes themselves say."""
    return sealed[len(VERSION) : HEAD_BYTES].hex()


def key_id(key: Secret) -> str:
    """By what a key is named in the ledger and in messages; it tells nothing of the key."""
    digest = hashlib.sha256(b"webhook gateway key id\0" + key.reveal())
    return digest.digest()[:ID_BYTES].hex()


def read_key(ref: SecretRef, text: bytes) -> Secret:
    """The key that a reference leads to. Raises SecretUnusable, which shows nothing of it."""
    key = _decoded(text.decode("utf-8", "replace"))
    if key is None:
        found = f"{ref}, which has {len(text)} characters and is no such key"
        raise SecretUnusable(found=found, expected=KEY_EXPECTED)
    if len(set(key)) < DIFFERENT_BYTES:
        raise SecretUnusable(found=f"{ref}, which is not random", expected=KEY_EXPECTED)
    return Secret(key)


def _decoded(text: str) -> bytes | None:
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    if _BASE64.fullmatch(text):
        return base64.urlsafe_b64decode(text.rstrip("=").replace("+", "-").replace("/", "_") + "=")
    return None


def _packed(parts: Sequence[str | bytes]) -> bytes:
    """Each with its length, so that no two lists of parts are the same bytes."""
    raw = [part if isinstance(part, bytes) else part.encode() for part in parts]
    return b"".join(_LENGTH.pack(len(part)) + part for part in raw)
