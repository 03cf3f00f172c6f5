"""The token by which GitHub knows an App: signed with the App's own key, and short-lived."""

import base64
import time
from collections.abc import Callable, Mapping
from typing import Final

import orjson
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

# https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app
CLOCKS_DRIFT_S: Final = 60
LIFETIME_S: Final = 540
"""GitHub takes ten minutes at the most."""


def read_key(pem: bytes) -> RSAPrivateKey:
    """Raises ValueError, which says nothing of the key."""
    try:
        key = load_pem_private_key(pem.replace(b"\\n", b"\n"), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise ValueError("not an RSA private key in PEM, without a password")
    return key


def make_token(app_id: str, key: RSAPrivateKey, now_s: int) -> str:
    """A JSON Web Token, RS256."""
    parts = [
        _base64({"alg": "RS256", "typ": "JWT"}),
        _base64({"iat": now_s - CLOCKS_DRIFT_S, "exp": now_s + LIFETIME_S, "iss": app_id}),
    ]
    signature = key.sign(".".join(parts).encode(), PKCS1v15(), SHA256())
    return ".".join([*parts, _encode(signature)])


def app_tokens(app_id: str, key: RSAPrivateKey) -> Callable[[], str]:
    """Tokens for requests: a new one before the last one expires."""
    made: tuple[int, str] = (0, "")

    def token() -> str:
        nonlocal made
        now_s = int(time.time())
        if abs(now_s - made[0]) > LIFETIME_S / 2:
            made = now_s, make_token(app_id, key, now_s)
        return made[1]

    return token


def _base64(claims: Mapping[str, object]) -> str:
    return _encode(orjson.dumps(claims))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
