"""Make keys from secrets: bytes for HMAC, public or private keys for the other algorithms."""

import base64
import binascii
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from gateway.base.problems import Unexpected

PUBLIC_PREFIX: Final = "whpk_"
PRIVATE_PREFIX: Final = "whsk_"
SEED_BYTES: Final = 32
KEY_BYTES: Final = 32
_HEX_KEY: Final = re.compile(f"[0-9a-fA-F]{{{2 * KEY_BYTES}}}")
HIDDEN: Final = "a secret (not shown) that is no such key"
PUBLIC_EXPECTED: Final = (
    "the sender's public key: PEM, base64 of DER, or for Ed25519 its 32 bytes in hex or base64"
)

PrivateKey = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
AnyPublicKey = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies, and can also sign if the private key was given."""

    public: AnyPublicKey = field(repr=False)
    private: PrivateKey | None = field(default=None, repr=False)

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether the private half of the key signed the message."""
        try:
            if isinstance(self.public, ed25519.Ed25519PublicKey):
                self.public.verify(signature, message)
            else:
                self.public.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def sign(self, message: bytes) -> bytes:
        """Sign a message. Raises Unexpected if only the public half is known."""
        if self.private is None:
            raise Unexpected(
                found="a public key, which can only verify", expected="the sender's private key"
            )
        if isinstance(self.private, ed25519.Ed25519PrivateKey):
            return self.private.sign(message)
        return self.private.sign(message, ec.ECDSA(hashes.SHA256()))


def decode_strictly(text: str, form: str) -> bytes | None:
    """Decode hex or base64. Return None for text that another decoder would read differently."""
    try:
        if form == "hex":
            return bytes.fromhex(text) if text.isalnum() else None
        if form == "base64url":
            return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):  # ValueError: not ASCII, odd hex
        return None


def read_hmac_key(form: str, prefixes: tuple[str, ...]) -> Callable[[bytes], bytes]:
    """Return a function that makes the HMAC key from a secret."""

    def read(secret: bytes) -> bytes:
        if form == "text":
            return secret
        text = secret.decode("utf-8", "replace")
        for prefix in prefixes:
            text = text.removeprefix(prefix)
        key = decode_strictly(text, form)
        if not key:
            start = f"{prefixes[-1]} and " if prefixes else ""
            raise Unexpected(found=HIDDEN, expected=f"{start}the key in {form}")
        return key

    return read


def read_public_key(secret: bytes, kind: str) -> PublicKey:
    """Read a public or private key. Raises Unexpected, whose text never shows the secret."""
    try:
        found = _load(secret.decode("ascii"), kind)
    except (ValueError, TypeError):  # cryptography: no key, encrypted key, unknown curve
        found = None
    if found is None or not isinstance(found.public, _CLASSES[kind]):
        raise Unexpected(found=HIDDEN, expected=PUBLIC_EXPECTED)
    return found


_CLASSES: Final[dict[str, type]] = {
    "ed25519": ed25519.Ed25519PublicKey,
    "ecdsa": ec.EllipticCurvePublicKey,
}


def _load(text: str, kind: str) -> PublicKey | None:
    if text.startswith("-----BEGIN"):
        is_private = "PRIVATE KEY" in text.partition("\n")[0]
        pem = text.encode()
        return (
            _private(load_pem_private_key(pem, None))
            if is_private
            else _public(load_pem_public_key(pem))
        )
    if text.startswith(PRIVATE_PREFIX):
        seed = decode_strictly(text.removeprefix(PRIVATE_PREFIX), "base64") or b""
        return _private(ed25519.Ed25519PrivateKey.from_private_bytes(seed[:SEED_BYTES]))
    text = text.removeprefix(PUBLIC_PREFIX)
    # Decide by the characters, not by the length: the base64 of a private key's DER has the
    # same length as this hex.
    is_hex = kind == "ed25519" and _HEX_KEY.fullmatch(text) is not None
    key = decode_strictly(text, "hex" if is_hex else "base64")
    if key is None:
        return None
    if kind == "ed25519" and len(key) == KEY_BYTES:
        return PublicKey(ed25519.Ed25519PublicKey.from_public_bytes(key))
    try:
        return _public(load_der_public_key(key))
    except ValueError:
        return _private(load_der_private_key(key, None))


def _public(key: Any) -> PublicKey:
    return PublicKey(key)


def _private(key: Any) -> PublicKey:
    return PublicKey(key.public_key(), key)


def make_private_key(kind: str) -> str:
    """Make a development key, as base64 of its DER, which `read_public_key` accepts."""
    key: PrivateKey = (
        ed25519.Ed25519PrivateKey.generate()
        if kind == "ed25519"
        else ec.generate_private_key(ec.SECP256R1())
    )
    der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return base64.b64encode(der).decode()


def make_hmac_key(form: str, prefixes: tuple[str, ...]) -> str:
    """Make a development key in the format in which the sender issues its keys."""
    if form == "hex":
        return secrets.token_hex(SEED_BYTES)
    prefix = prefixes[-1] if prefixes else ""
    return prefix + base64.b64encode(secrets.token_bytes(SEED_BYTES)).decode()
