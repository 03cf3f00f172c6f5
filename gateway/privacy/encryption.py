"""Encrypt bytes under a key ring: AES-256-GCM, bound to the row in which they are stored.

The format is: version · id of the key · nonce · ciphertext and tag. The version, the key id and the
identity of the row are authenticated data, so the ciphertext of one row cannot be decrypted as
another row's. Pure code: no clock, no I/O.
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

from gateway.base.errors import KeyMissing, SealBroken
from gateway.base.secrets import Secret, SecretRef, SecretUnusable

VERSION: Final = b"\x01"
KEY_BYTES: Final = 32
ID_BYTES: Final = 8
NONCE_BYTES: Final = 12
"""Nonces are random.

After 2^32 encryptions under one key, a repeated nonce is no longer negligible (NIST SP 800-38D,
8.3). A key should be replaced long before that.
"""

TAG_BYTES: Final = 16
HEAD_BYTES: Final = len(VERSION) + ID_BYTES
OVERHEAD_BYTES: Final = HEAD_BYTES + NONCE_BYTES + TAG_BYTES
DIFFERENT_BYTES: Final = 12
"""Of 32 random bytes about 30 are distinct; of a key made by hand far fewer are."""

KEY_EXPECTED: Final = "32 random bytes as base64 or hex, such as `openssl rand -base64 32` prints"
DIGEST_PREFIX: Final = "digest:"
PUBLIC_KEY: Final = b"webhook gateway digests"
"""The key for digests if no `digest_key` is set. Guesses can then be compared with a digest."""

_LENGTH: Final = struct.Struct(">I")
_HEX: Final = re.compile(r"[0-9A-Fa-f]{64}")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]{43}=?|[A-Za-z0-9_-]{43}=?")


class KeyRing:
    """Keys by their ids. The first key encrypts, all of them decrypt."""

    def __init__(self, keys: Sequence[Secret] = (), digest_key: Secret | None = None) -> None:
        self._keys = {key_id(key): AESGCM(key.reveal()) for key in keys}
        self._first = next(iter(self._keys), None)
        self._digest_key = PUBLIC_KEY if digest_key is None else digest_key.reveal()

    @property
    def first(self) -> str:
        """The id of the key that encrypts. Raises LookupError if there are no keys."""
        if self._first is None:
            raise LookupError("there is no key to encrypt with: set `keys` in routes.yaml")
        return self._first

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def seal(self, plaintext: bytes, identity: Sequence[str]) -> bytes:
        """Encrypt under the first key, for the row with this identity only."""
        head = VERSION + bytes.fromhex(self.first)
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._keys[self.first].encrypt(nonce, plaintext, head + _packed(identity))
        return head + nonce + sealed

    def open(self, sealed: bytes, identity: Sequence[str]) -> bytes:
        """Decrypt. Raises KeyMissing, or SealBroken if the data was not encrypted for this row."""
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
        """Return a keyed digest, which can be compared but not reversed.

        It is the same for every key of the ring.
        """
        return hmac.digest(self._digest_key, _packed(parts), "sha256")

    def digest_text(self, *parts: str | bytes) -> str:
        """Return the digest as text with a prefix that identifies it."""
        return DIGEST_PREFIX + base64.urlsafe_b64encode(self.digest(*parts)).decode().rstrip("=")

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._keys)})"


def sealed_under(sealed: bytes) -> str:
    """Return the id of the key from the encrypted bytes."""
    return sealed[len(VERSION) : HEAD_BYTES].hex()


def key_id(key: Secret) -> str:
    """Return the id of a key in the ledger and in messages. It reveals nothing about the key."""
    digest = hashlib.sha256(b"webhook gateway key id\0" + key.reveal())
    return digest.digest()[:ID_BYTES].hex()


def read_key(ref: SecretRef, text: bytes) -> Secret:
    """Parse the key that a reference names. Raises SecretUnusable, which does not show the key."""
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
    """Join the parts with their lengths, so that different lists never yield the same bytes."""
    raw = [part if isinstance(part, bytes) else part.encode() for part in parts]
    return b"".join(_LENGTH.pack(len(part)) + part for part in raw)
